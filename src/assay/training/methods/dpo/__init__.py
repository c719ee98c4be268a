"""Preferences taught to a language model directly, without a reward model: DPO and its relatives."""
