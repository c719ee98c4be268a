"""Supervised fine-tuning: a language model learns the tokens that it is shown."""
