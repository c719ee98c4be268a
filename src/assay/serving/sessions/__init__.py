"""Sessions: a client's training loop as a log of requests and results."""
