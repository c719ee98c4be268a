"""Memory use and utilisation of this machine's GPUs from nvidia-smi; empty without a GPU.

The process that follows a run queries it now and then, so no training step waits for it. Tested against a fake
nvidia-smi only.
"""

import shutil
import subprocess
from collections.abc import Iterator

from assay.trackers.sink import Point

_LIMIT_S = 10.0


def gpu_points(step: int, at_s: float) -> list[Point]:
    """Return `gpu_0_memory_bytes`, `gpu_0_utilisation` (0 to 1), and so on."""
    return [point for line in _query_gpus("index,memory.used,utilization.gpu") for point in _points(line, step, at_s)]


def smallest_gpu_bytes() -> int | None:
    """Return the memory of the smallest GPU; None without a GPU, or if its driver does not report it."""
    sizes = [float(line) for line in _query_gpus("memory.total") if line.strip().replace(".", "", 1).isdecimal()]
    return int(min(sizes) * 2.0**20) if sizes else None


def _query_gpus(query: str) -> list[str]:
    """Return one line of nvidia-smi per GPU."""
    if (program := shutil.which("nvidia-smi")) is None:
        return []
    try:
        return subprocess.run(
            [program, f"--query-gpu={query}", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=True,
        ).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        return []


def _points(line: str, step: int, at_s: float) -> Iterator[Point]:
    """Yield the points of one GPU, without values that its driver does not report (`[N/A]`)."""
    index, *values = (part.strip() for part in line.split(","))
    named = {"memory_bytes": 2.0**20, "utilisation": 0.01}
    for (name, unit), value in zip(named.items(), values, strict=False):
        if value.replace(".", "", 1).isdecimal():
            yield Point(f"gpu_{index}_{name}", step, at_s, float(value) * unit)
