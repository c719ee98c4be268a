"""Runs a command as on a kernel that lacks what fences python graders.

    python tests/older_kernel.py LACKS COMMAND ...

LACKS is `landlock` (its first system call is unknown) or `seccomp` (no process may take on a filter). A filter
of the kernel's own makes it so, for the command and all that it starts.
"""

import ctypes
import os
import platform
import struct
import sys

_LOAD, _IF_EQUAL, _RETURN, _ALLOW = 0x20, 0x15, 0x06, 0x7FFF0000
_ENOSYS, _EINVAL = 38, 22
_CREATE_RULESET, _PRCTL, _SET_SECCOMP = 444, {"x86_64": 157, "aarch64": 167}, 22


def lack(what: str) -> None:
    """From now on this process has it no more."""
    if what == "landlock":
        program = [
            (_LOAD, 0, 0, 0),
            (_IF_EQUAL, 0, 1, _CREATE_RULESET),
            (_RETURN, 0, 0, 0x50000 | _ENOSYS),
            (_RETURN, 0, 0, _ALLOW),
        ]
    else:
        program = [
            (_LOAD, 0, 0, 0),
            (_IF_EQUAL, 0, 3, _PRCTL[platform.machine()]),
            (_LOAD, 0, 0, 16),
            (_IF_EQUAL, 0, 1, _SET_SECCOMP),
            (_RETURN, 0, 0, 0x50000 | _EINVAL),
            (_RETURN, 0, 0, _ALLOW),
        ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *entry) for entry in program))
    filters = struct.pack("@HP", len(program), ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(_SET_SECCOMP, 2, filters, 0, 0):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


if __name__ == "__main__":
    lack(sys.argv[1])
    os.execvp(sys.argv[2], sys.argv[2:])
