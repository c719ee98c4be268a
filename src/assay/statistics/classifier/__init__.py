"""A classifier's predictions: metrics with intervals, slices, and two models side by side."""
