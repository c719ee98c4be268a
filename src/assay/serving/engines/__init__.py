"""Engines of loaded models, and the processes that run them."""
