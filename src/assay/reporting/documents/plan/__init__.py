"""The documents of a program: its plan and schedule, and the status of its weeks."""
