"""Metrics of a classifier's predictions with intervals, slices, and comparisons of two models."""
