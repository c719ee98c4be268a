"""Reward modelling from preference pairs."""
