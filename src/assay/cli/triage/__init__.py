"""`assay triage`: why runs fail, hang, become slower or start late, what changed in data, what a fix did."""
