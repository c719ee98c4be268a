"""A folder for PYTHONPATH: Python imports its `sitecustomize` when a script under test starts."""
