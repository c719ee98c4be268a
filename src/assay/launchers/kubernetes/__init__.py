"""Runs as Jobs of a Kubernetes cluster: the manifest, a small API client, and a run's own growth."""
