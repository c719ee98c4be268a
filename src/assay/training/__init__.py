"""From batches to weights."""
