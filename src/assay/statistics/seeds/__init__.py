"""Outlier seeds, dependent seeds, and the trimmed mean over seeds."""
