"""The queue of jobs: whose turn it is, what a job waits for, and when it will be done."""
