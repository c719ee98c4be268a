"""What a page says, as typed values: no markup, no drawing."""
