"""How facts look on a terminal."""
