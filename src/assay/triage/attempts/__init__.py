"""One table of attempts, whoever wrote them down: assay's ledger, a scheduler, a test runner, a CI, a plain
table."""
