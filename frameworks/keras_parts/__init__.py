"""What adapters that train by Keras share, whichever backend it runs on; only they import it, for it imports Keras."""
