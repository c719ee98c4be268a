"""Incidents for `assay triage` by two authors who read none of its rules (the second one wrote `second_logs`).

A module per question has a fixed seed, `incidents()` and a grade of what the command reports. `is_held_out` marks the
half that was not shown before the rules were last changed.
"""
