"""Held-out rows: their selection, leak detection, and a compact copy for evaluation."""
