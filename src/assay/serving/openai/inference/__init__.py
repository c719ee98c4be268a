"""Inference over HTTP: chat, completions, embeddings, decisions."""
