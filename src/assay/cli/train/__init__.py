"""`assay train`: train, resume, fork and drill; write a recipe; add machines to a run, and stop it."""
