"""Rows before they are tokens: what files of texts hold, a stretch at a time."""
