"""Where the time of CI goes, how to cut it, and which tests flake."""
