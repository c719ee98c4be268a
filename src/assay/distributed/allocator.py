"""Tunes glibc's allocator for a training process.

A step frees some tens of megabytes, and the next step allocates as much again. By default glibc returns such
blocks to the kernel, which provides them again page by page, zeroed: thousands of page faults a step, about 2%
of the step time of a small model on a CPU.
"""

import ctypes
import sys

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Parameters of mallopt(3)."""

MAX_RETAINED_BYTES = 32 << 20
"""Largest threshold that glibc accepts: larger blocks always go back to the kernel."""


def retain_freed_memory() -> bool:
    """Make this process retain freed memory; return False if the C library is not glibc."""
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    never = 2**31 - 1
    return bool(mallopt(M_TRIM_THRESHOLD, never) and mallopt(M_MMAP_THRESHOLD, MAX_RETAINED_BYTES))
