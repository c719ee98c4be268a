"""Administration: projects, service accounts, device-hours and the audit log."""
