"""Limits of the HTTP server: connections and log lines."""
