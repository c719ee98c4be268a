"""Bytes that survive a crash: objects, the ledger, metric segments; and the faulty stores that tests use."""
