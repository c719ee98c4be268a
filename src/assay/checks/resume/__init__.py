"""A test of how a training script resumes: it is killed at chosen places, and its observed work is compared."""
