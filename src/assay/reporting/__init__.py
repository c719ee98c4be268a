"""Records as pages that people would rather look at than read."""
