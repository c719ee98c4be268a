"""Ladders: changes to a known-good config, one at a time, each a campaign."""
