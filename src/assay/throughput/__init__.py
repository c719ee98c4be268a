"""Forecasts the throughput of a recipe on more workers from a calibration on one or two."""
