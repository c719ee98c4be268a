"""The C library's allocator in a process that trains.

A step frees what it allocated, some tens of megabytes, and the next allocates the same again. By default glibc
hands such blocks back to the kernel, which then gives them out anew, page by page and zeroed: thousands of page
faults a step, some 2% of the time of a small model on a CPU.
"""

import ctypes
import sys

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Parameters of mallopt(3)."""

MAX_RETAINED_BYTES = 32 << 20
"""The most that glibc takes as its threshold: larger blocks are the kernel's, come what may."""


def retain_freed_memory() -> bool:
    """Let this process keep what it frees, for its next step; False where the C library is not glibc."""
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    never = 2**31 - 1
    return bool(mallopt(M_TRIM_THRESHOLD, never) and mallopt(M_MMAP_THRESHOLD, MAX_RETAINED_BYTES))
