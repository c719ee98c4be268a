"""A uniform table of attempts from assay's ledger, a scheduler, a test runner, CI, or a plain table."""
