"""The supervisors of several nodes: who leads, how they talk, who succeeds."""
