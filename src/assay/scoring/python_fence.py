"""The seccomp filter of Python graders: an allow list of system calls, by processor.

    system call --> of another ABI: the process is killed
                    listed here: allowed, or allowed with some arguments
                    any other, including future ones: denied

The listed calls let a grader compute, wait, and read what Landlock permits (`python_child`). They start no
process, open no socket, send no signal, and change no files, limits or priorities. Threads are allowed: clones
that share the process.

System call numbers depend on the processor; for an unknown processor there is no filter.
"""

import struct
import sys
from collections.abc import Mapping

FENCE = frozenset({"files", "calls"})
"""The parts of the fence: Landlock (files) and seccomp (system calls)."""

_CALLS = {
    "read": (0, 63), "pread64": (17, 67), "readv": (19, 65), "preadv": (295, 69), "preadv2": (327, 286),
    "lseek": (8, 62), "close": (3, 57), "fstat": (5, 80), "newfstatat": (262, 79), "stat": (4, None),
    "lstat": (6, None), "statx": (332, 291), "statfs": (137, 43), "fstatfs": (138, 44),
    "access": (21, None), "faccessat": (269, 48), "faccessat2": (439, 439), "readlink": (89, None),
    "readlinkat": (267, 78), "getdents": (78, None), "getdents64": (217, 61), "getcwd": (79, 17),
    "chdir": (80, 49), "fchdir": (81, 50), "fadvise64": (221, 223), "mincore": (27, 232),

    "write": (1, 64), "writev": (20, 66), "pwrite64": (18, 68), "pwritev": (296, 70), "pwritev2": (328, 287),

    "dup": (32, 23), "dup2": (33, None), "dup3": (292, 24), "pipe": (22, None), "pipe2": (293, 59),
    "poll": (7, None), "ppoll": (271, 73), "select": (23, None), "pselect6": (270, 72),
    "epoll_create": (213, None), "epoll_create1": (291, 20), "epoll_ctl": (233, 21),
    "epoll_wait": (232, None), "epoll_pwait": (281, 22), "epoll_pwait2": (441, 441), "eventfd": (284, None),
    "eventfd2": (290, 19), "close_range": (436, 436),

    "brk": (12, 214), "mmap": (9, 222), "munmap": (11, 215), "mremap": (25, 216), "mprotect": (10, 226),
    "madvise": (28, 233), "msync": (26, 227), "membarrier": (324, 283), "get_mempolicy": (239, 236),

    "exit": (60, 93), "exit_group": (231, 94), "futex": (202, 98), "futex_waitv": (449, 449),
    "set_robust_list": (273, 99), "set_tid_address": (218, 96), "rseq": (334, 293), "gettid": (186, 178),
    "sched_yield": (24, 124), "sched_getaffinity": (204, 123), "sched_getparam": (143, 121),
    "sched_getscheduler": (145, 120), "sched_get_priority_max": (146, 125),
    "sched_get_priority_min": (147, 126), "getcpu": (309, 168), "arch_prctl": (158, None),

    "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139),
    "rt_sigpending": (127, 136), "rt_sigsuspend": (130, 133), "rt_sigtimedwait": (128, 137),
    "sigaltstack": (131, 132), "restart_syscall": (219, 128), "pause": (34, None), "alarm": (37, None),
    "setitimer": (38, 103), "getitimer": (36, 102),

    "nanosleep": (35, 101), "clock_nanosleep": (230, 115), "clock_gettime": (228, 113),
    "clock_getres": (229, 114), "gettimeofday": (96, 169), "time": (201, None), "times": (100, 153),

    "getpid": (39, 172), "getppid": (110, 173), "getpgrp": (111, None), "getpgid": (121, 155),
    "getsid": (124, 156), "getuid": (102, 174), "geteuid": (107, 175), "getresuid": (118, 148),
    "getgid": (104, 176), "getegid": (108, 177), "getresgid": (120, 150), "getgroups": (115, 158),
    "uname": (63, 160), "sysinfo": (99, 179), "umask": (95, 166), "getpriority": (140, 141),

    "getrlimit": (97, 163), "setrlimit": (160, 164), "getrusage": (98, 165), "getrandom": (318, 278),
}  # fmt: skip
"""System call numbers on x86_64 and aarch64; None if the processor has no such call."""

_ONLY_WITH = {"open": (2, None), "openat": (257, 56), "clone": (56, 220), "prctl": (157, 167),
              "fcntl": (72, 25), "ioctl": (16, 29), "prlimit64": (302, 261)}  # fmt: skip
"""System calls that are allowed with some arguments only (see `_checks`)."""
_DOES_WITHOUT = {"clone3": (435, 435), "openat2": (437, 437)}
"""Their arguments are in memory, which a filter cannot read. They return ENOSYS; libraries have fallbacks."""
_LAST_KNOWN = 462
"""Larger numbers return ENOSYS, because libraries probe for newer calls and have fallbacks."""

_LOAD, _IF_EQUAL, _IF_AT_LEAST, _IF_ANY_OF, _AND, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
"""BPF instructions."""
_ALLOW, _DENY, _NO_SUCH_CALL, _END_PROCESS = 0x7FFF0000, 0x50000 | 1, 0x50000 | 38, 0x80000000
_NUMBER, _ABI = 0, 4
"""Offsets of the call number and the ABI in the filter's input."""
_X32 = 0x40000000
"""Bit set in call numbers of the x32 ABI."""

_TRUNCATE, _ACCESS, _WRITES, _READS_AND_WRITES = 0x200, 3, 1, 2
_THREAD, _NAMESPACES = 0x10000, 0x7E020000
_PRCTL = (3, 15, 16, 0x53564D41)  # get dumpable; set thread name; name memory
_FCNTL = (0, 1, 2, 3, 4, 1030, 1032)  # duplicate, flags, pipe size; no locks, owners or signals
_IOCTL = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)  # is a terminal; bytes to read; flags


_PROCESSORS = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
"""The kernel's AUDIT_ARCH_... constant, and the column of the numbers above."""

_Instruction = tuple[int, int, int, int]
"""(code, instructions to skip if true, if false, constant)."""


def filter_program(machine: str) -> bytes | None:
    """Return the filter for a processor named as by `platform.machine()`; None if unknown.

    None for 32-bit processes too, which use another ABI.
    """
    if machine not in _PROCESSORS or sys.maxsize < 1 << 32:
        return None
    abi, column = _PROCESSORS[machine]
    program: list[_Instruction] = [(_LOAD, 0, 0, _ABI), (_IF_EQUAL, 1, 0, abi), _returned(_END_PROCESS)]
    program += [(_LOAD, 0, 0, _NUMBER), (_IF_AT_LEAST, 0, 1, _X32), _returned(_END_PROCESS)]
    for number in _numbers(_CALLS, column):
        program += [(_IF_EQUAL, 0, 1, number), _returned(_ALLOW)]
    for number in _numbers(_DOES_WITHOUT, column):
        program += [(_IF_EQUAL, 0, 1, number), _returned(_NO_SUCH_CALL)]
    for name, check in _checks().items():
        if (number_here := _ONLY_WITH[name][column]) is not None:
            program += [(_IF_EQUAL, 0, len(check), number_here), *check]
    program += [(_IF_AT_LEAST, 0, 1, _LAST_KNOWN + 1), _returned(_NO_SUCH_CALL), _returned(_DENY)]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)


def _numbers(calls: Mapping[str, tuple[int, int | None]], column: int) -> list[int]:
    return [number for call in calls.values() if (number := call[column]) is not None]


def _checks() -> dict[str, list[_Instruction]]:
    """Return the argument checks by system call; each ends with a verdict."""
    allow, deny = _returned(_ALLOW), _returned(_DENY)
    is_thread = [
        (_LOAD, 0, 0, _argument(0)), (_IF_ANY_OF, 0, 1, _NAMESPACES), deny,
        (_IF_ANY_OF, 1, 0, _THREAD), deny, allow,
    ]  # fmt: skip
    return {
        "open": _truncates_only_to_write(1),
        "openat": _truncates_only_to_write(2),
        "clone": is_thread,
        "prctl": _one_of(0, _PRCTL),
        "fcntl": _one_of(1, _FCNTL),
        "ioctl": _one_of(1, _IOCTL),
        "prlimit64": _one_of(0, (0,)),
    }


def _truncates_only_to_write(position: int) -> list[_Instruction]:
    """Deny truncation by read-only opens, which Landlock permits before Linux 6.2."""
    return [
        (_LOAD, 0, 0, _argument(position)), (_IF_ANY_OF, 1, 0, _TRUNCATE), _returned(_ALLOW),
        (_AND, 0, 0, _ACCESS), (_IF_EQUAL, 2, 0, _WRITES), (_IF_EQUAL, 1, 0, _READS_AND_WRITES),
        _returned(_DENY), _returned(_ALLOW),
    ]  # fmt: skip


def _one_of(position: int, values: tuple[int, ...]) -> list[_Instruction]:
    comparisons = [(_IF_EQUAL, len(values) - index, 0, value) for index, value in enumerate(values)]
    return [(_LOAD, 0, 0, _argument(position)), *comparisons, _returned(_DENY), _returned(_ALLOW)]


def _argument(position: int) -> int:
    return 16 + 8 * position


def _returned(verdict: int) -> _Instruction:
    return (_RETURN, 0, 0, verdict)
