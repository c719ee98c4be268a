"""Short real runs of two variants in turn: which of them takes longer for a step."""
