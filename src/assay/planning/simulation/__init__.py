"""What a plan is worth when durations, people, data and results are not what it says."""
