"""Facts about runs."""
