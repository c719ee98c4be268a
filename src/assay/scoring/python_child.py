"""What runs in a grader's process: the fence first, then the source, then one sample after another.

`python_process` starts this file by its path; it imports nothing of assay. The fence is the kernel's, and holds
whatever the source does within the interpreter:

    files        Landlock: reads Python and the system's libraries, writes in its own empty folder, nothing else
    processes    seccomp: starts none, signals and traces none, changes nobody's rights (x86-64)
    network      a namespace of its own; no sockets

What this kernel does not grant is said in the first answer. Besides, Python's own events refuse the same by a
clear name.
"""

import ctypes
import json
import math
import os
import platform
import random
import resource
import signal
import struct
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

OUT_OF_TIME = signal.SIGPROF
"""Ends a process whose sample took more processor time than it may."""

_NEW_USER_AND_NETWORK = 0x10000000 | 0x40000000
_NO_NEW_PRIVILEGES, _SECCOMP, _FILTER = 38, 22, 2
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
"""Landlock's system calls, the same on every architecture."""

_READ_FILE, _READ_FOLDER = 1 << 2, 1 << 3
_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}
"""How many rights on files each version of Landlock knows; later ones 16."""
_READABLE = (
    "/usr", "/lib", "/lib64", "/opt", "/nix/store", "/etc/ld.so.cache", "/etc/localtime",
    "/proc/cpuinfo", "/proc/meminfo", "/sys/devices/system", "/dev/urandom", "/dev/zero",
)  # fmt: skip

_X86_64 = 0xC000003E
_REFUSED_CALLS = {
    "processes": (57, 58, 59, 322, 272, 308),  # fork, vfork, execve, execveat, unshare, setns
    "signals": (62, 200, 234, 424, 434),  # kill, tkill, tgkill, pidfd_send_signal, pidfd_open
    "others' memory": (101, 310, 311, 312, 438, 440, 448, 256, 279),  # ptrace, process_*, kcmp, *_pages
    "others' time": (141, 142, 144, 203, 251, 314),  # setpriority, sched_set*, ioprio_set
    "shared memory": (29, 30, 31, 64, 65, 66, 68, 69, 70, 71, 220, 240),  # shm*, sem*, msg*, mq_open
    "the kernel's insides": (135, 298, 321, 323),  # personality, perf_event_open, bpf, userfaultfd
    "network": (41, 42, 49, 50, 425),  # socket, connect, bind, listen, io_uring_setup
    "rights": (90, 91, 92, 93, 94, 260, 268, 452),  # chmod, fchmod, chown, fchown, lchown, *at, fchmodat2
    "attributes": (132, 188, 189, 190, 197, 198, 199, 235, 261, 280),  # utime*, setxattr*, removexattr*
    "mounts and keys": (155, 161, 165, 166, 248, 249, 250),
}  # fmt: skip
_CLONE, _CLONE_THREAD, _CLONE3, _PRLIMIT = 56, 0x10000, 435, 302
_ALLOW, _REFUSE, _UNKNOWN = 0x7FFF0000, 0x50000 | 1, 0x50000 | 38

_REFUSED_EVENTS = (
    "socket.", "subprocess.", "os.system", "os.exec", "os.fork", "os.posix_spawn", "os.kill", "pty.", "ctypes.",
)  # fmt: skip


def _serve() -> None:
    channel = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(os.open(os.devnull, os.O_RDWR), 1)
    first = json.loads(sys.stdin.buffer.readline())
    missing = _fence(Path.cwd())
    for which, amount in {
        resource.RLIMIT_AS: first["memory_bytes"],
        resource.RLIMIT_FSIZE: 16 << 20,
        resource.RLIMIT_NOFILE: 32,
        resource.RLIMIT_CORE: 0,
    }.items():
        hard = resource.getrlimit(which)[1]
        amount = amount if hard == resource.RLIM_INFINITY else min(amount, hard)
        resource.setrlimit(which, (amount, amount))
    sys.addaudithook(_refuse)
    channel.write(json.dumps({"missing": missing}).encode() + b"\n")

    names: dict[str, Any] = {"__name__": "grader"}
    broken = None
    try:
        exec(compile(first["source"], "grader", "exec"), names)
        grade = names["grade"]
    except BaseException as error:
        broken = f"{type(error).__name__}: {error}"
    for line in sys.stdin.buffer:
        asked = json.loads(line)
        answer = {"failure": broken} if broken else _graded(grade, asked, first["cpu_s"])
        channel.write(json.dumps({"of": asked["of"], **answer}).encode() + b"\n")


def _graded(grade: Any, asked: Mapping[str, Any], cpu_s: float) -> dict[str, Any]:
    try:
        # Processor time is limited for each sample anew: one child serves many. The timer's signal ends it; one
        # that would not hear of that meets the limit, a second or two later.
        used = resource.getrusage(resource.RUSAGE_SELF)
        soft = int(used.ru_utime + used.ru_stime + cpu_s) + 2
        resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.getrlimit(resource.RLIMIT_CPU)[1]))
        signal.setitimer(signal.ITIMER_PROF, cpu_s)
        # No score depends on the samples before it, nor on when it is asked for.
        random.seed(0)
        score = float(grade(asked["sample"], asked["item"]))
        return {"score": score} if math.isfinite(score) else {"failure": f"grade() returned {score}"}
    except BaseException as error:
        return {"failure": f"{type(error).__name__}: {error}"[:500]}
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _refuse(event: str, _: object) -> None:
    if event.startswith(_REFUSED_EVENTS):
        raise PermissionError(f"graders may not use {event}")


def _fence(own: Path) -> list[str]:
    """Put it up, for this process and for good; what this kernel does not grant."""
    libc = ctypes.CDLL(None, use_errno=True)
    granted = {
        "network": not libc.unshare(_NEW_USER_AND_NETWORK),
        "files": not libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) and _fence_files(libc, own),
        "processes": _fence_calls(libc),
    }
    # Refused system calls make no sockets either.
    granted["network"] |= granted["processes"]
    return [name for name, is_granted in granted.items() if not is_granted]


def _fence_files(libc: Any, own: Path) -> bool:
    version = libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), 1)
    if version < 1:
        return False
    everything = (1 << _RIGHTS.get(version, 16)) - 1
    asked = struct.pack("=Q", everything)
    rules = libc.syscall(_CREATE_RULESET, asked, ctypes.c_size_t(len(asked)), 0)
    readable = {sys.prefix, sys.base_prefix, *filter(None, sys.path), *_READABLE}
    for path in filter(Path.exists, [*map(Path, readable), own]):
        rights = everything if path == own else _READ_FILE | (_READ_FOLDER if path.is_dir() else 0)
        beneath = os.open(path, os.O_PATH | os.O_CLOEXEC)
        rule = struct.pack("=Qi", rights, beneath)
        is_added = not libc.syscall(_ADD_RULE, rules, 1, rule, 0)
        os.close(beneath)
        if not is_added:
            return False
    is_up = not libc.syscall(_RESTRICT_SELF, rules, 0)
    os.close(rules)
    return is_up


def _fence_calls(libc: Any) -> bool:
    if platform.machine() != "x86_64":
        return False
    load_architecture, load_number, load_first = ((0x20, 0, 0, at) for at in (4, 0, 16))
    refuse, unknown, allow = ((0x06, 0, 0, answer) for answer in (_REFUSE, _UNKNOWN, _ALLOW))

    program = [load_architecture, (0x15, 1, 0, _X86_64), refuse, load_number]
    program += [(0x35, 0, 1, 0x40000000), refuse]  # the numbers of the x32 interface
    for numbers in _REFUSED_CALLS.values():
        for number in numbers:
            program += [(0x15, 0, 1, number), refuse]
    program += [(0x15, 0, 1, _CLONE3), unknown]  # its flags cannot be read here; libraries fall back to clone
    program += [(0x15, 0, 3, _PRLIMIT), load_first, (0x15, 1, 0, 0), refuse, load_number]  # others' limits
    program += [(0x15, 0, 3, _CLONE), load_first, (0x45, 1, 0, _CLONE_THREAD), refuse, allow]
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *line) for line in program))
    filters = struct.pack("@HP", len(program), ctypes.addressof(code))
    return not libc.prctl(_SECCOMP, _FILTER, filters, 0, 0)


if __name__ == "__main__":
    _serve()
