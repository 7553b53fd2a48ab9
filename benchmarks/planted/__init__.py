"""Whether a comparison of two runs tells a cost that was planted, and stays silent where none was."""
