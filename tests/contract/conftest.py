"""The runs of a tiny model, as the integration tests make them."""

from integration.conftest import new_tiny_run, run_here, run_it, tiny_dataset

__all__ = ["new_tiny_run", "run_here", "run_it", "tiny_dataset"]
