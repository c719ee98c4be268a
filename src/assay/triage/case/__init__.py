"""An investigation as a record: hypotheses, their predictions, the results, and the resulting verdicts."""
