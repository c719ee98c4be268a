"""What a text with metadata is labelled with: 0 or 1, one of several classes, or a number."""
