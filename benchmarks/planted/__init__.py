"""What a comparison of two runs tells of a cost that was planted, and that it is silent where none was."""
