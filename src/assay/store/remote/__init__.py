"""Objects behind a URL: the driver, and reading by ranges."""
