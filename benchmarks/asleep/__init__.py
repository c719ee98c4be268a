"""A method whose lanes sleep: what a cluster that is measured trains with, see `benchmarks/cluster.py`."""
