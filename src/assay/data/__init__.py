"""Datasets (sharded Parquet) and the loader that reads them as batches of NumPy arrays; no torch."""
