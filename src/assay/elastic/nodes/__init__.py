"""The supervisors of a run on several nodes: leadership, messages and handover."""
