"""Lightning's Trainer and Fabric on PyTorch."""
