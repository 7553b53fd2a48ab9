"""What a step through an adapter costs, against the same step written by hand."""
