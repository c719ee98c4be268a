"""The harness of the benchmarks: options, turns, targets, and the JSON result.

Contenders take turns, in the other order every second round, so that a machine whose speed drifts favours none of
them. Every benchmark prints what it measured, compares figures with their targets, and ends with one JSON object.
"""

import argparse
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

CHECKOUT = Path(__file__).parents[1]
PUBLISHED_DATA = Path(os.environ.get("ASSAY_DATA", CHECKOUT.parent / "shared" / "data"))
"""Folder of published data."""
PACKAGES = ("torch", "assay", "transformers", "accelerate", "lightning", "trl", "numpy", "pyarrow")

Contender = TypeVar("Contender")
Result = TypeVar("Result")


def options_of(description: str | None) -> argparse.ArgumentParser:
    """Return a parser of options whose help is the module's docstring."""
    return argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)


def in_turn(
    contenders: Mapping[Contender, Callable[[int], Result]], rounds: int, *, warm_ups: int = 0
) -> dict[Contender, list[Result]]:
    """Call each contender with the round's number, in alternating order; return the results without the warm-ups."""
    results: dict[Contender, list[Result]] = {name: [] for name in contenders}
    for number in range(warm_ups + rounds):
        for name in list(contenders)[:: -1 if number % 2 else 1]:
            results[name].append(contenders[name](number))
    return {name: found[warm_ups:] for name, found in results.items()}


def resampled_medians(values: Sequence[float], num_resamples: int = 1000) -> npt.NDArray[np.float64]:
    """Return the medians of a sample's bootstrap resamples."""
    drawn = np.random.default_rng(0).choice(np.array(values), size=(num_resamples, len(values)))
    return np.asarray(np.median(drawn, axis=1), np.float64)


class Median(NamedTuple):
    """A median with its interval of 95%."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Median":
        """Return the median of a sample, with the interval by the bootstrap."""
        # Fewer than six values may all lie on one side of the median by chance.
        low, high = np.percentile(resampled_medians(values), (2.5, 97.5)) if len(values) > 5 else (-np.inf, np.inf)
        return cls(float(np.median(values)), float(low), float(high))

    def __format__(self, spec: str) -> str:
        return f"{self.value:{spec}} ({self.low:{spec}} to {self.high:{spec}})"


class Target(NamedTuple):
    """The bound of a figure."""

    name: str
    bound: float
    at_most: bool

    def line(self, found: float | Median) -> str:
        """Return the figure beside its bound, which a median reaches or misses with its whole interval."""
        value, low, high = found if isinstance(found, Median) else (found, found, found)
        is_reached = high <= self.bound if self.at_most else low >= self.bound
        is_missed = low > self.bound if self.at_most else high < self.bound
        away = f"{abs(value / self.bound - 1):.1%} away" if is_missed else f"not resolved: ±{(high - low) / 2:.2%}"
        expected = f"{'at most' if self.at_most else 'at least'} {self.bound}"
        return f"  {self.name:<35}{found:7.4f}   {expected}: {'reached' if is_reached else away}"


def print_result(figures: Mapping[str, Any], targets: Sequence[Target] = (), *, digits: int = 4) -> None:
    """Print the targets of measured figures, then all figures as one JSON object."""
    known = [target for target in targets if target.name in figures]
    if known:
        print("\nTargets:")
    for target in known:
        print(target.line(figures[target.name]))
    print(
        json.dumps(
            {name: round(value, digits) if isinstance(value, float) else value for name, value in figures.items()}
        )
    )


def describe_machine() -> None:
    """Print processor, packages and load."""
    model, cpuinfo = platform.processor(), Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        model = names[0] if names else model
    print(f"{model}, {os.cpu_count()} cores; Python {platform.python_version()}")
    found = [name for name in PACKAGES if importlib.util.find_spec(name)]
    print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in found))
    load = os.getloadavg()[0]
    print(f"load average {load:.2f}" + (": NOT QUIET, do not quote these figures" if load > 0.5 else ""))


@contextmanager
def workspace() -> Iterator[Path]:
    """Yield a temporary folder whose `home` is assay's."""
    folder = Path(tempfile.mkdtemp(prefix="assay-bench-"))
    os.environ["ASSAY_HOME"] = str(folder / "home")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def assay(*arguments: str, cwd: Path | None = None) -> str:
    """Run a command of this checkout in a process of its own; return its output."""
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT / "src")}
    command = [sys.executable, "-m", "assay", *arguments]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"assay {' '.join(arguments)}:\n{done.stdout}{done.stderr}")
    return done.stdout


def last_json(text: str) -> Any:
    """Return the JSON object on the last line of a process's output."""
    return json.loads(text.strip().splitlines()[-1])


def cost_of(work: Callable[[], object]) -> dict[str, float]:
    """Return the seconds of CPU (all threads) and of wall time that `work` takes."""
    started_s, cpu_s = time.monotonic(), time.process_time()
    work()
    return {"cpu_s": time.process_time() - cpu_s, "wall_s": time.monotonic() - started_s}


def rss_mb(pid: int | str = "self", *, field: str = "VmRSS") -> float:
    """Return the resident memory of a process; 0 if it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith(field)), 0.0)


def peak_rss_mb(pid: int | str = "self") -> float:
    """Return the highest resident memory of a process; 0 if it is gone."""
    return rss_mb(pid, field="VmHWM")
