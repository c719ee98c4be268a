"""Batches of requests: their logs, states and stored responses."""
