"""OpenAI's fine-tuning API over HTTP: requests become log entries, which workers execute."""
