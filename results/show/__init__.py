"""Records as tables, text, Markdown and exchange formats."""
