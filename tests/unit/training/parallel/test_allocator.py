"""A process that keeps what it frees meets the kernel once, not once a step."""

import subprocess
import sys

import pytest

STEPS = """
import resource, sys
import torch
from assay.training.parallel.allocator import keep_freed_memory

if sys.argv[1] == "keeps":
    assert keep_freed_memory()

def step():
    held = [torch.ones(1 << 20) for _ in range(8)]  # 32 MiB, as gradients are held until the update
    del held

for _ in range(3):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator is Linux's")
def test_the_steps_after_the_first_few_meet_no_page_faults() -> None:
    keeps, default = (page_faults(mode) for mode in ("keeps", "default"))
    assert keeps < 100, keeps
    assert default > 20_000, default


def page_faults(mode: str) -> int:
    """Of five steps after three, in a process of its own."""
    ran = subprocess.run([sys.executable, "-c", STEPS, mode], capture_output=True, text=True, check=True)
    return int(ran.stdout)
