"""Reinforcement learning from the rewards of whole completions, compared within groups."""
