"""Engine processes, each of which loads and serves one model."""
