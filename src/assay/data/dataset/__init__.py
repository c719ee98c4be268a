"""Index or build datasets, profile them, split them, and read their row groups."""
