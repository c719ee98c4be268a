"""`assay decide again`: campaigns and their decisions, comparisons of runs, and the power of a comparison."""
