"""Run supervisors as actors of a Ray cluster: start, restart elsewhere, drain, stop."""
