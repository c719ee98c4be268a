"""Commands of assay in processes of their own."""
