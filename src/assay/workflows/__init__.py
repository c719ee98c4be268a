"""Wires objects and starts them; the only part that knows all the others."""
