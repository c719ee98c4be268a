"""A model that leaves its run: exported for other tools, and asked about rows."""
