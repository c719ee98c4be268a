"""What a training process frees stays with it, so that its next step has the pages already."""

import subprocess
import sys

import pytest

ONE_BLOCK = """
import os, sys
import torch
from assay.training.parallel.allocator import keep_freed_memory

def resident_mib():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20

if sys.argv[1] == "keeps":
    assert keep_freed_memory()
before = resident_mib()
block = torch.ones(6 << 20)  # 24 MiB
del block
print(resident_mib() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator is Linux's")
def test_what_is_freed_stays_with_the_process() -> None:
    assert freed_but_resident_mib("keeps") > 20
    assert freed_but_resident_mib("default") < 4


def freed_but_resident_mib(mode: str) -> float:
    """Of a block of 24 MiB, in a process of its own."""
    ran = subprocess.run([sys.executable, "-c", ONE_BLOCK, mode], capture_output=True, text=True, check=True)
    return float(ran.stdout)
