"""Webhooks: endpoints, pending messages and their delivery."""
