"""`admin.organization.*`: projects, accounts, keys, limits, costs and the audit log over HTTP."""
