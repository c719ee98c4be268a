"""Why attempts fail: which factors the failures have in common, and whether a repair helped."""
