"""An investigation as a notebook: what hypotheses predict, what came of it, and which one stands."""
