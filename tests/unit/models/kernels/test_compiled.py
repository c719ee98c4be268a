"""The kernels as an H100 runs them: they compile, and keep what they compute in registers."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")


def test_kernels_compile_for_an_h100_without_spilling_registers(tmp_path: Path) -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    program = Path(__file__).with_name("compile_for_h100.py")
    process = subprocess.run([sys.executable, program], env=environment, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    kernels = json.loads(process.stdout)
    assert [kernel["stack_bytes"] for kernel in kernels.values()] == [0, 0, 0]
    # Those of the logarithm are part of its definition; others would round the sums as the compiler pleases.
    assert [kernel["fused_multiply_adds"] for kernel in kernels.values()] == [12, 0, 0]
    head, attention, _ = kernels.values()
    assert head["loads_of_16_bytes"] >= 2  # each of the two readings of the logits
    assert attention["matrix_products"] and attention["copies_ahead"]
    assert attention["shared_bytes"] <= 48 << 10  # four programs on a multiprocessor
