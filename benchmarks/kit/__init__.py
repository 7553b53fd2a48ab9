"""What every benchmark shares: samples in files, processes to measure in, and one shape of command."""
