"""Measures what a forecast of other world sizes needs, and puts forecasts beside runs."""
