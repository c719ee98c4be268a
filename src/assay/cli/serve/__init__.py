"""`assay serve`: the API, its workers and its keys."""
