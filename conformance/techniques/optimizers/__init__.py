"""Updates by the documented rules."""
