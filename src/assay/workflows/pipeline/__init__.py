"""Stages that build on one another, each a run, with the seeds of a campaign."""
