"""Ids, units, errors, time and seeds: what everything stands on."""
