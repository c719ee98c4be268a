"""Drawings: plain SVG from plain values."""
