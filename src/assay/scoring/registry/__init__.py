"""Loads the registry format of OpenAI Evals (YAML and JSONL) and reproduces the rules of its classes."""
