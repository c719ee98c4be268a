"""From a promising pilot to decision-ready evidence."""
