"""Live pages over a home: the documents of `reporting` with addresses, filters, live curves and actions."""
