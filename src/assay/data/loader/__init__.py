"""Which rows stand behind each step, and their arrays."""
