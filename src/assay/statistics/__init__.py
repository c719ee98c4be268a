"""Comparisons with their uncertainty; knows no torch."""
