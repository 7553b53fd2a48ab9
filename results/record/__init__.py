"""The record: its model, its reader, the crash-safe journal that becomes it."""
