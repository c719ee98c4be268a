"""Why runs fail, hang, slow down or change: what was seen, and the cause that it points to. Knows no torch."""
