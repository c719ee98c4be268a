"""A stand-in for a Kubernetes cluster: an API server, a Job controller, nodes, and pods that are processes."""
