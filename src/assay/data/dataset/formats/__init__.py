"""Rows for language models: what files of TRL and OpenAI say, rendered, and as tokens."""
