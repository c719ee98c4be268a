"""What became slower: changes in a series, and which factor changed there."""
