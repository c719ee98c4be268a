"""How good a completion is, as one number, learned from pairs of which one was preferred."""
