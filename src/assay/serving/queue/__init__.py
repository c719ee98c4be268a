"""The job queue: launch order, wait reasons and estimated finish."""
