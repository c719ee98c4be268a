"""The engines that start runs, and what only each of them can do to one, for `tests/contract/test_launchers.py`."""
