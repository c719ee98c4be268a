"""How full and how busy the GPUs of this machine are, as their driver's own program says; nothing where there
is none.

Asked by the process that follows a run, now and then: no step waits for it. *On this project's machines it has
met no GPU: the program was a stand-in.*
"""

import shutil
import subprocess
from collections.abc import Iterator

from assay.trackers.sink import Point

_LIMIT_S = 10.0


def gpu_points(step: int, at_s: float) -> list[Point]:
    """`gpu_0_memory_bytes`, `gpu_0_utilisation` (a share), and so on, at a step and a moment."""
    return [point for line in _query_gpus("index,memory.used,utilization.gpu") for point in _points(line, step, at_s)]


def smallest_gpu_bytes() -> int | None:
    """Memory of the GPU that has least; None where there is none, or its driver cannot tell."""
    sizes = [float(line) for line in _query_gpus("memory.total") if line.strip().replace(".", "", 1).isdecimal()]
    return int(min(sizes) * 2.0**20) if sizes else None


def _query_gpus(query: str) -> list[str]:
    """A line for each GPU."""
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
    """The points of one GPU; what its driver cannot tell (`[N/A]`) is left out."""
    index, *values = (part.strip() for part in line.split(","))
    named = {"memory_bytes": 2.0**20, "utilisation": 0.01}
    for (name, unit), value in zip(named.items(), values, strict=False):
        if value.replace(".", "", 1).isdecimal():
            yield Point(f"gpu_{index}_{name}", step, at_s, float(value) * unit)
