"""Rollouts: completions of prompts that the policy generates to train on."""
