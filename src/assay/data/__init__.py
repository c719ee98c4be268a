"""Sharded Parquet in, batches of NumPy arrays out; knows no torch."""
