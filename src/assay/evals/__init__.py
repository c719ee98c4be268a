"""Running a checkpoint over rows; the only part of evaluation that touches torch."""
