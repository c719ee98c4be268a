"""The whole story on one machine, on rows that any machine has."""
