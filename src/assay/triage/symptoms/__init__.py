"""Symptoms of failures: the line of a log that names the failure, its class, and what failures share."""
