"""What a program is, as its file says it, and what follows from it: plan, offer, progress."""
