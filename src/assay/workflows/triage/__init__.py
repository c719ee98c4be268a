"""What triage starts: the commands that a hypothesis predicts."""
