"""Documents: HTML and Markdown from views and figures."""
