"""Models and what methods share about them."""
