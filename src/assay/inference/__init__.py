"""Completions of a causal language model: rollouts, what evaluations sample, conversations."""
