"""Verbs of runs that train over several clusters: replay, pilot."""
