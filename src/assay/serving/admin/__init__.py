"""Who may do what, and what it costs: projects, service accounts, device-hours, and who changed what."""
