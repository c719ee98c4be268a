"""What clients hold of the server: their connections, and the lines of its log."""
