"""OpenAI's API over HTTP: routes, request bodies, pages and objects as the official SDK defines them."""
