"""Models that answer: what is asked of one, and the processes that hold them."""
