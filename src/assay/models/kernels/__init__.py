"""Triton kernels, each with plain torch code that computes the same where Triton cannot run."""
