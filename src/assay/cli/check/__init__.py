"""`assay check`: test the resume of anybody's training script, and anybody's training API."""
