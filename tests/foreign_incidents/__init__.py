"""Incidents for `assay triage` by an author who read none of its rules, nor the incidents that they were tried on.

A module per question has a fixed seed, `incidents()` and a grade of what the command reports. `is_held_out` marks the
half that was not shown before the rules were last changed.
"""
