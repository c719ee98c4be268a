"""Workers that execute the requests of sessions."""
