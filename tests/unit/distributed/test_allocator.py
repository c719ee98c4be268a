"""What a training process frees stays with it, so that its next step has the pages already."""

import ctypes
import subprocess
import sys

import pytest

from assay.distributed import allocator

ONE_BLOCK = """
import os, sys
import torch
from assay.distributed.allocator import retain_freed_memory

def resident_mib():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20

if sys.argv[1] == "keeps":
    assert retain_freed_memory()
before = resident_mib()
block = torch.ones(6 << 20)  # 24 MiB
del block
print(resident_mib() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator is Linux's")
def test_what_is_freed_stays_with_the_process() -> None:
    assert freed_but_resident_mib("keeps") > 20
    assert freed_but_resident_mib("default") < 4


def freed_but_resident_mib(mode: str) -> float:
    """Of a block of 24 MiB, in a process of its own."""
    ran = subprocess.run([sys.executable, "-c", ONE_BLOCK, mode], capture_output=True, text=True, check=True)
    return float(ran.stdout)


class Glibc:
    """Notes what it is asked; refuses a parameter if told to."""

    def __init__(self, refused: int | None = None) -> None:
        self.parameters: dict[int, int] = {}
        self._refused = refused

    def mallopt(self, parameter: int, value: int) -> int:
        self.parameters[parameter] = value
        return int(parameter != self._refused)


@pytest.mark.parametrize(("refused", "retained"), [(None, True), (-1, False), (-3, False)])
def test_glibc_is_asked_to_trim_never_and_to_map_only_the_largest_blocks(monkeypatch, refused, retained) -> None:
    """Parameters as in glibc's malloc.h; it refuses a threshold of mapping above 32 MiB."""
    glibc = Glibc(refused)
    monkeypatch.setattr(ctypes, "CDLL", {None: glibc}.get)
    monkeypatch.setattr(sys, "platform", "linux")
    assert allocator.retain_freed_memory() is retained
    assert glibc.parameters.items() <= {-1: 2**31 - 1, -3: 32 << 20}.items()
    assert len(glibc.parameters) == (1 if refused == -1 else 2)


@pytest.mark.parametrize(("platform", "library"), [("linux", object()), ("darwin", Glibc())])
def test_another_c_library_is_left_alone(monkeypatch, platform, library) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    monkeypatch.setattr(sys, "platform", platform)
    assert allocator.retain_freed_memory() is False
    assert not getattr(library, "asked", None)
