"""Supervised fine-tuning of language models."""
