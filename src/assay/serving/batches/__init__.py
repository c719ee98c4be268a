"""Batches of requests: logs, what their entries come to, and where answers lie until they are files."""
