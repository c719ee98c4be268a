"""The filter of system calls, run by an interpreter of its own instructions, for both kinds of processors."""

import re
import struct
from pathlib import Path

import pytest

from assay.scoring import python_fence
from assay.scoring.python_fence import filter_program

ABIS = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
ALLOWED, REFUSED, NO_SUCH_CALL, ENDED = 0x7FFF0000, 0x50001, 0x50026, 0x80000000
COLUMN = {"x86_64": 0, "aarch64": 1}


def verdict(machine: str, number: int, *arguments: int, abi: int | None = None) -> int:
    """What the kernel does about a call, by the documentation of its filters."""
    program = filter_program(machine)
    assert program is not None
    padded = [*arguments, *[0] * (6 - len(arguments))]
    data = struct.pack("<IIQ6Q", number, ABIS[machine] if abi is None else abi, 0, *padded)
    at, held = 0, 0
    while True:
        code, if_true, if_false, value = struct.unpack_from("=HBBI", program, 8 * at)
        at += 1
        match code:
            case 0x20:
                (held,) = struct.unpack_from("<I", data, value)
            case 0x54:
                held &= value
            case 0x06:
                return value
            case 0x15 | 0x35 | 0x45:
                holds = {0x15: held == value, 0x35: held >= value, 0x45: bool(held & value)}[code]
                at += if_true if holds else if_false
            case _:
                raise AssertionError(f"unknown instruction {code:#x}")


def number_of(machine: str, name: str) -> int:
    """As the kernel's headers have it."""
    if machine == "x86_64":
        path, pattern = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"), rf"__NR_{name}\s+(\d+)$"
    else:
        # It names calls of two sizes once, by the older names.
        path, pattern = Path("/usr/include/asm-generic/unistd.h"), rf"__NR(?:3264)?_{name}\s+(\d+)$"
    if not path.is_file():
        pytest.skip(f"{path} is not installed (apt-get install linux-libc-dev)")
    found = re.search(rf"^#define {pattern}", path.read_text(), re.MULTILINE)
    assert found is not None, name
    return int(found[1])


@pytest.mark.parametrize("machine", ABIS)
def test_every_number_is_the_kernels(machine: str) -> None:
    generic = {"newfstatat": "fstatat"} if machine == "aarch64" else {}
    for table in (python_fence._CALLS, python_fence._ONLY_WITH, python_fence._DOES_WITHOUT):
        for name, numbers in table.items():
            if (here := numbers[COLUMN[machine]]) is not None:
                assert here == number_of(machine, generic.get(name, name)), name


REFUSED_CALLS = (
    "execve execveat ptrace kill tkill tgkill socket socketpair connect bind listen accept4 sendto "
    "setpriority unshare setns mount umount2 chroot pivot_root process_vm_readv process_vm_writev "
    "pidfd_open pidfd_send_signal pidfd_getfd io_uring_setup io_uring_enter bpf perf_event_open "
    "userfaultfd keyctl add_key request_key memfd_create shmget semget msgget mq_open unlinkat "
    "renameat2 linkat symlinkat mkdirat mknodat fchmod fchmodat fchown fchownat truncate ftruncate "
    "utimensat setxattr removexattr flock sync syncfs fsync fallocate inotify_init1 fanotify_init "
    "name_to_handle_at open_by_handle_at kcmp sched_setaffinity sched_setscheduler sched_setattr "
    "ioprio_set personality setuid setgid setreuid setresuid setgroups capset setsid setpgid reboot "
    "kexec_load init_module finit_module delete_module swapon quotactl acct settimeofday clock_settime "
    "adjtimex sethostname syslog seccomp prctl landlock_create_ruleset process_madvise process_mrelease "
    "migrate_pages move_pages mbind set_mempolicy splice vmsplice tee sendfile copy_file_range "
    "timer_create timerfd_create signalfd4"
)


@pytest.mark.parametrize("machine", ABIS)
def test_what_reaches_beyond_the_process_is_refused(machine: str) -> None:
    for name in REFUSED_CALLS.split():
        assert verdict(machine, number_of(machine, name)) == REFUSED, name


@pytest.mark.parametrize("name", ["open", "creat", "fork", "vfork", "unlink", "rename", "mkdir", "chmod", "chown"])
def test_older_forms_of_the_same_are_refused(name: str) -> None:
    allowed = ALLOWED if name == "open" else REFUSED
    assert verdict("x86_64", number_of("x86_64", name)) == allowed


CLONE = {"x86_64": 56, "aarch64": 220}
OPENAT = {"x86_64": 257, "aarch64": 56}
THREAD = 0x3D0F00
"""How the C library makes one."""


@pytest.mark.parametrize("machine", ABIS)
def test_clones_that_share_their_process_are_allowed_and_no_others(machine: str) -> None:
    assert verdict(machine, CLONE[machine], THREAD) == ALLOWED
    assert verdict(machine, CLONE[machine], 17) == REFUSED, "a fork"
    assert verdict(machine, CLONE[machine], 0x4111) == REFUSED, "a vfork"
    for bit in (0x20000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000):
        assert verdict(machine, CLONE[machine], THREAD | bit) == REFUSED, "a namespace"
    for name in ("clone3", "openat2"):
        assert verdict(machine, number_of(machine, name), THREAD) == NO_SUCH_CALL, "its flags cannot be seen"


@pytest.mark.parametrize("machine", ABIS)
@pytest.mark.parametrize(("access", "with_truncate"), [(0, REFUSED), (1, ALLOWED), (2, ALLOWED), (3, REFUSED)])
def test_a_file_is_emptied_by_none_that_does_not_open_it_to_write(
    machine: str, access: int, with_truncate: int
) -> None:
    assert verdict(machine, OPENAT[machine], 0, 0, access) == ALLOWED
    assert verdict(machine, OPENAT[machine], 0, 0, access | 0x200) == with_truncate
    if machine == "x86_64":
        assert verdict(machine, 2, 0, access | 0x200) == with_truncate


@pytest.mark.parametrize("machine", ABIS)
@pytest.mark.parametrize(
    ("name", "allowed", "refused"),
    [
        (
            "fcntl",
            [(0, 0), (0, 2, 1), (0, 1030)],
            [(0, at) for at in (6, 8, 10, 15, 1024, 1026, 1031)],
        ),
        ("ioctl", [(0, 0x5401), (0, 0x541B)], [(0, 0x5412), (0, 0x8901), (0, 0x4004), (0, 0x5452)]),
        ("prlimit64", [(0, 7), (1 << 32, 7)], [(1, 7), (0xFFFFFFFF, 7)]),
        ("prctl", [(15,), (16,)], [(1,), (4,), (22,), (23,), (28,), (36,), (38,), (47,)]),
    ],
)
def test_calls_of_many_uses_are_allowed_by_their_use(
    machine: str, name: str, allowed: list[tuple[int, ...]], refused: list[tuple[int, ...]]
) -> None:
    number = number_of(machine, name)
    assert {verdict(machine, number, *arguments) for arguments in allowed} == {ALLOWED}
    assert {verdict(machine, number, *arguments) for arguments in refused} == {REFUSED}


@pytest.mark.parametrize("machine", ABIS)
def test_another_abi_ends_the_process(machine: str) -> None:
    for abi in {0x40000003, 0x40000028, *ABIS.values()} - {ABIS[machine]}:  # i386, arm
        assert verdict(machine, 39, abi=abi) == ENDED
    assert verdict(machine, 0x40000000 | 39) == ENDED, "x32"
    assert verdict(machine, 0xFFFFFFFF) == ENDED


@pytest.mark.parametrize("machine", ABIS)
def test_of_all_numbers_those_named_are_allowed_and_no_more(machine: str) -> None:
    named = {call[COLUMN[machine]] for call in python_fence._CALLS.values()} - {None}
    checked = {entry[COLUMN[machine]] for entry in python_fence._ONLY_WITH.values()} - {None}
    assert {number for number in range(500) if verdict(machine, number) == ALLOWED} - checked == named
    assert verdict(machine, 463) == NO_SUCH_CALL, "a library may do without what it has not heard of"


def test_of_another_processor_nothing_is_known() -> None:
    assert [filter_program(machine) for machine in ("i686", "armv7l", "aarch64_be", "riscv64", "")] == [None] * 5
