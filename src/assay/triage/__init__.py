"""Finds causes: why runs fail, hang, slow down or change. Contains no torch."""
