"""The life of an attempt: supervisors, the processes of ranks, nodes, and the faults that try them."""
