"""Classification and regression of texts with metadata: 0 or 1, one of several classes, or a number."""
