"""Finds slowdowns: lasting changes in a series, and the factor that changed."""
