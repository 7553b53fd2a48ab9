"""Records: model, reader, and the crash-safe journal of a run."""
