"""Scaling laws: loss as a function of parameters, tokens and compute, with uncertainty and tested range."""
