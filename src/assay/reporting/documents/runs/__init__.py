"""Documents about runs."""
