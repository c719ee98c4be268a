"""OpenAI's fine-tuning API over HTTP: requests become entries of logs, which workers act on."""
