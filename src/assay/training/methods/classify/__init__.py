"""A binary text classifier with metadata."""
