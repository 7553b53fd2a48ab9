"""The specification as data: clauses and findings, and their readers."""
