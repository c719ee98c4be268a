"""Generate completions and score texts in this process, bit for bit the same in any batch."""
