"""Sums over lanes whose bits do not depend on the number of ranks."""
