"""Monte Carlo simulation of a plan under uncertain durations, people, data and results."""
