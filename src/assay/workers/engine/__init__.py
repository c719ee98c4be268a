"""The process behind a model that `assay serve` answers with: it loads the model, and is asked."""
