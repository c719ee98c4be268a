"""From evidence to a verdict: candidates, gates, coverage, and the recommendation to scale, narrow or stop."""
