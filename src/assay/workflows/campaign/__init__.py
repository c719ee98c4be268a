"""A campaign, from its declaration to its memo."""
