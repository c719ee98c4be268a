"""The answers of models on the wire: chat, completions, embeddings, decisions."""
