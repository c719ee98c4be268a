"""Row formats of language models: reads, renders and tokenises rows of assay, TRL and OpenAI."""
