"""What a test holds in its hands, and how what happened in it becomes an outcome."""
