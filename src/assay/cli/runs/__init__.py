"""`assay runs`: list, show, compare, check, replay, export, annotate and delete runs."""
