"""Tests of other people's software: scripts that train, and servers of training APIs."""
