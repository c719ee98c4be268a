"""The program of a grader's process: installs the fence, then runs the source, then grades samples.

    limits -> fence -> report what the kernel did not grant -> source -> samples (stopped between samples)

`python_process` starts this file by its path; it imports nothing of assay. The kernel enforces the fence, whatever
the source does inside the interpreter:

    files    Landlock: read Python and the system's libraries, write nothing
    calls    seccomp: compute and wait; no process, socket or signal (see `python_fence`)
    threads  RLIMIT_NPROC, which counts per user, so this process gets a user id or namespace of its own

Superuser capabilities are dropped. Python audit events block the same operations with a clear error message.
"""

import ctypes
import fcntl
import json
import math
import os
import random
import re
import resource
import secrets
import signal
import struct
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

_NO_NEW_PRIVILEGES, _SECCOMP, _FILTER = 38, 22, 2
_CAPABILITIES = 0x20080522
_NEW_USER = 0x10000000
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
"""Landlock's system calls; the numbers are the same on every architecture."""

_WRITE_FILE, _READ_FILE, _READ_FOLDER = 1 << 1, 1 << 2, 1 << 3
_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}
"""Number of file rights in each Landlock version; 16 in later ones."""
_READABLE = (
    "/usr", "/lib", "/lib64", "/nix/store", "/etc/ld.so.cache", "/etc/localtime",
    "/proc/cpuinfo", "/proc/meminfo", "/sys/devices/system", "/dev/urandom", "/dev/zero",
)  # fmt: skip
_WRITABLE = "/dev/null"

_BLOCKED_EVENTS = (
    "socket.", "subprocess.", "os.system", "os.exec", "os.fork", "os.posix_spawn", "os.kill", "pty.",
)  # fmt: skip


def _serve() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # an external SIGINT must not look like an exception of the source
    _wake_with_input()
    channel = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(os.open(os.devnull, os.O_RDWR), 1)
    first = json.loads(sys.stdin.buffer.readline())
    _limit(first)
    missing = _fence(first["fence"], bytes.fromhex(first["calls"] or ""))
    _send(channel, first, {"missing": missing})
    if missing:
        return
    second = json.loads(sys.stdin.buffer.readline())
    names: dict[str, Any] = {"__name__": "grader"}
    broken = None
    try:
        exec(compile(second["source"], "grader", "exec"), names)
        grade = names["grade"]
    except BaseException as error:
        broken = f"{type(error).__name__}: {error}"[:500]
    _send(channel, second, {})
    for line in sys.stdin.buffer:
        request = json.loads(line)
        reply = {"failure": broken} if broken is not None else _graded(grade, request)
        _send(channel, request, reply)


def _send(channel: Any, request: Mapping[str, Any], reply: Mapping[str, Any]) -> None:
    channel.write(json.dumps({"of": request["of"], **reply}).encode() + b"\n")


def _graded(grade: Any, request: Mapping[str, Any]) -> dict[str, Any]:
    try:
        # Seed, so that a score does not depend on earlier samples.
        random.seed(0)
        score = float(grade(request["sample"], request["item"]))
        return {"score": score} if math.isfinite(score) else {"failure": f"grade() returned {score}"}
    except BaseException as error:
        return {"failure": f"{type(error).__name__}: {error}"[:500]}


def _wake_with_input() -> None:
    """Make the kernel send SIGCONT to this (stopped) process on input, including EOF when the parent dies."""
    fcntl.fcntl(0, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(0, fcntl.F_SETSIG, signal.SIGCONT)
    fcntl.fcntl(0, fcntl.F_SETFL, fcntl.fcntl(0, fcntl.F_GETFL) | os.O_ASYNC)


def _limit(limits: Mapping[str, Any]) -> None:
    """Set hard resource limits, which cannot be raised again."""
    for which, amount in {
        resource.RLIMIT_AS: limits["memory_bytes"],
        resource.RLIMIT_CPU: limits["lifetime_s"],
        resource.RLIMIT_CORE: 0,
        **({resource.RLIMIT_NOFILE: limits["open_files"]} if limits["fence"] else {}),
        **({resource.RLIMIT_FSIZE: 0} if "files" in limits["fence"] else {}),
        **({resource.RLIMIT_NPROC: limits["threads"]} if "calls" in limits["fence"] and _be_alone() else {}),
    }.items():
        hard = resource.getrlimit(which)[1]
        amount = amount if hard == resource.RLIM_INFINITY else min(amount, hard)
        resource.setrlimit(which, (amount, amount))


def _be_alone() -> bool:
    """Make RLIMIT_NPROC count only this process. Returns whether that succeeded.

    Root is exempt from the limit, so the process switches to an unused real and effective user id. It keeps user 0
    for files and for signals of its parent; seccomp prevents it from switching back. Any other user creates a user
    namespace, in which Linux counts processes separately since 5.14.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if os.geteuid() == 0:
        with suppress(OSError):
            number = 1 << 30 | secrets.randbits(30)
            os.setresuid(number, number, 0)
            libc.setfsuid(0)
            return True
    release = tuple(int(number) for number in re.findall(r"\d+", os.uname().release)[:2])
    return release >= (5, 14) and not libc.unshare(_NEW_USER)


def _block_event(event: str, _: object) -> None:
    if event.startswith(_BLOCKED_EVENTS):
        raise PermissionError(f"graders may not use {event}")


def _fence(parts: list[str], calls: bytes) -> list[str]:
    """Install the parts of the fence irrevocably; return those that the kernel does not grant, with the reason."""
    libc, missing = ctypes.CDLL(None, use_errno=True), []
    if parts:
        header, none = struct.pack("=Ii", _CAPABILITIES, 0), bytes(24)
        if libc.capset(header, none) or libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0):
            return [f"rights ({os.strerror(ctypes.get_errno())})"]
        sys.addaudithook(_block_event)
    if "files" in parts and not _fence_files(libc):
        missing.append(f"files (Landlock: {os.strerror(ctypes.get_errno())})")
    if "calls" in parts and not calls:
        missing.append(f"system calls (unknown processor {os.uname().machine})")
    elif "calls" in parts and not _fence_calls(libc, calls):
        missing.append(f"system calls (seccomp: {os.strerror(ctypes.get_errno())})")
    return missing


def _fence_files(libc: Any) -> bool:
    version = libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), 1)
    if version < 1:
        return False
    request = struct.pack("=Q", (1 << _RIGHTS.get(version, 16)) - 1)
    rules = libc.syscall(_CREATE_RULESET, request, ctypes.c_size_t(len(request)), 0)
    readable = {sys.prefix, sys.base_prefix, *filter(None, sys.path), *_READABLE} - {"/"}
    rights = {path: _READ_FILE | (_READ_FOLDER if path.is_dir() else 0) for path in map(Path, readable)}
    for path, right in {**rights, Path(_WRITABLE): _READ_FILE | _WRITE_FILE}.items():
        if path.exists():
            beneath = os.open(path, os.O_PATH | os.O_CLOEXEC)
            is_added = not libc.syscall(_ADD_RULE, rules, 1, struct.pack("=Qi", right, beneath), 0)
            os.close(beneath)
            if not is_added:
                return False
    is_up = not libc.syscall(_RESTRICT_SELF, rules, 0)
    os.close(rules)
    return is_up


def _fence_calls(libc: Any, program: bytes) -> bool:
    code = ctypes.create_string_buffer(program, len(program))
    filters = struct.pack("@HP", len(program) // 8, ctypes.addressof(code))
    return not libc.prctl(_SECCOMP, _FILTER, filters, 0, 0)


if __name__ == "__main__":
    _serve()
