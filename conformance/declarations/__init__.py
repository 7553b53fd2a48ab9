"""What adapters declare, compared with what their frameworks do."""
