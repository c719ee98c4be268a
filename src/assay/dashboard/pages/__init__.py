"""One module per page: each turns a request into a `Page`."""
