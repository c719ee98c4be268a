"""`admin.organization.*`: projects, accounts, keys, limits, costs and the audit log on the wire."""
