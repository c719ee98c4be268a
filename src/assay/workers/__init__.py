"""Processes that execute what the API accepted."""
