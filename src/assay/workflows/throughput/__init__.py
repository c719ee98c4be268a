"""Calibrates a recipe for throughput forecasts, and measures the attempts that forecasts are compared with."""
