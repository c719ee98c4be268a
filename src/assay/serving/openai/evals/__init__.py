"""`evals.*`: evals, their runs and output items over HTTP."""
