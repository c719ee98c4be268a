"""Graders of completions, shared by RL rewards and benchmarks."""
