"""Webhooks: who wants to be told of what, what is due to them, and how it is brought there."""
