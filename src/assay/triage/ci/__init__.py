"""Where the time of CI goes, how to cut it, which tests flake, and which ones a change reaches."""
