"""A short real run of a variant in a temporary home, which can pause between intervals.

It is an `assay train` process, so it may run another commit's code, in its own session, which is stopped and
continued as a whole (SIGSTOP, SIGCONT). Measured are the step ends and phases that its rank 0 recorded.

    continued |  whole step  |  step 31  |  step 32  |  step 33  |  ste| stopped
                 caches warm      c o u n t                        cut
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np
import yaml

from assay.base.clock import Clock
from assay.base.errors import StoreError, TrainingError
from assay.base.shapes import Float64
from assay.records.phase import STEP
from assay.store.attempts import saved_attempts
from assay.store.home import Home
from assay.store.known_runs import RUN_FILE
from assay.store.metrics.segment import PhaseChanges, SegmentData, read_segment, segment_path
from assay.triage.slow.blocks import CountedSteps
from assay.triage.symptoms.logs import read_log

RUN_ID = "short"
POLL_S = 0.02
"""Polling interval while the run advances."""
STOP_TIMEOUT_S = 60.0
"""Time for the run to commit and exit after SIGTERM."""
PAUSE_S = 3600
"""Time without progress before a rank counts as hung: pauses must not look like hangs."""
_GUARD = """\
read -r word && exit
kill -s CONT -- "-$1"; kill -s TERM -- "-$1"; sleep $2; kill -s KILL -- "-$1"
"""
"""Shell script that continues and ends a stopped session if the measuring process is killed."""


class Variant(NamedTuple):
    """A recipe, and the code that runs it."""

    name: str
    recipe: Mapping[str, Any]
    source: Path | None = None
    """Source folder of the code; None for the running code."""
    commit: str = ""
    """Commit that the folder must contain."""


class VariantError(TrainingError):
    """Raised if a variant does not run."""

    def __init__(self, variant: str, reason: str) -> None:
        super().__init__(f"{variant} does not run: {reason}")
        self.variant = variant
        self.reason = reason


class ShortRun:
    """A short run; a context manager that stops it and removes its home at the end."""

    def __init__(self, variant: Variant, *, workers: int, most_steps: int, clock: Clock) -> None:
        """Start the run; it ends by itself after `most_steps`."""
        self._variant = variant
        self._clock = clock
        self._folder = TemporaryDirectory(prefix="assay-ab-", ignore_cleanup_errors=True)
        folder = Path(self._folder.name)
        self._run_dir = folder / "home" / RUN_ID
        self._output = folder / "output"
        self._intervals: list[tuple[float, float]] = []
        recipe = folder / "recipe.yaml"
        recipe.write_text(yaml.safe_dump(short_recipe(variant.recipe, most_steps)), encoding="utf-8")
        options = ["--run-id", RUN_ID, "--max-restarts", "0", "--hang-after", str(PAUSE_S)]
        # -P: do not import a folder `assay` in the working directory instead of the variant's code.
        command = [
            sys.executable,
            "-P",
            "-m",
            "assay",
            "train",
            str(recipe),
            "--workers",
            str(workers),
            *options,
        ]
        environment = {**os.environ, **Home.at(folder / "home").environment()}
        if variant.source is not None:
            paths = [str(variant.source), *filter(None, [os.environ.get("PYTHONPATH")])]
            environment["PYTHONPATH"] = os.pathsep.join(paths)
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,
            )
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", _GUARD, "sh", str(self._process.pid), str(STOP_TIMEOUT_S)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._signal(signal.SIGCONT)
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_TIMEOUT_S)
        self._signal(signal.SIGKILL)  # processes that ignored SIGTERM, or were left behind
        self._process.wait()
        self._guard.communicate(b"left\n")
        self._folder.cleanup()

    def advance(self, to_step: int) -> None:
        """Run until a step has ended, then stop. Raises `VariantError` if the run ends before."""
        start_s = self._clock.monotonic_s()
        self._signal(signal.SIGCONT)
        while self.num_steps() < to_step:
            if self._process.poll() is not None and self.num_steps() < to_step:
                raise VariantError(self._variant.name, self._failure_reason())
            self._clock.sleep_s(POLL_S)
        self._signal(signal.SIGSTOP)
        self._intervals.append((start_s, self._clock.monotonic_s()))

    def num_steps(self) -> int:
        segment = self._segment()
        return 0 if segment is None else int(segment.step_ends.steps.max(initial=0))

    def counted_steps(self, warm_up: int) -> CountedSteps:
        """Return the steps after `warm_up` that lie completely within an interval, without the first one of
        each."""
        segment = self._segment()
        assert segment is not None
        # A step is logged again when it is evaluated; only the first entry is its end.
        steps, first = np.unique(segment.step_ends.steps, return_index=True)
        ended_at_s = segment.step_ends.at_s[first]
        counted_steps = [
            index
            for start_s, stopped_s in self._intervals
            for index in np.flatnonzero((ended_at_s[:-1] >= start_s) & (ended_at_s[1:] <= stopped_s))[1:].tolist()
            if steps[index] >= warm_up
        ]
        spent = {phase: np.diff(_spent(segment.phase_changes, phase, ended_at_s)) for phase in STEP}
        phases = {str(phase): seconds[counted_steps] for phase, seconds in spent.items() if seconds.any()}
        return CountedSteps(tuple(steps[1:][counted_steps].tolist()), phases)

    def check_commit(self) -> None:
        """Raise `VariantError` if the run used other code than the variant's commit."""
        code_version = str(json.loads((self._run_dir / RUN_FILE).read_text()).get("code_version", ""))
        commit = code_version.partition("+g")[2].partition(".")[0]
        if self._variant.commit and not self._variant.commit.startswith(commit or "?"):
            raise VariantError(
                self._variant.name,
                f"other code ran in its place, which says that it is {code_version}. Is another assay installed over "
                "what $PYTHONPATH names?",
            )

    def _segment(self) -> SegmentData | None:
        path = segment_path(self._run_dir, 1, 0)
        try:
            return read_segment(path) if path.exists() else None
        except StoreError:
            return None

    def _signal(self, number: signal.Signals) -> None:
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            return

    def _failure_reason(self) -> str:
        ended = saved_attempts(self._run_dir)
        if ended and ended[0].reason:
            return ended[0].reason
        output = self._output.read_text(encoding="utf-8", errors="replace")
        _, is_known, error = f"\n{output}".partition("\nerror: ")
        if is_known:
            return error.strip()
        _, best = read_log(self._output)
        return best.text if best else "it exited without an error message"


def short_recipe(recipe: Mapping[str, Any], most_steps: int) -> dict[str, Any]:
    """Return the recipe without evaluations and intermediate commits."""
    tree = deepcopy(dict(recipe))
    tree.pop("evaluation", None)
    trainer = tree.setdefault("trainer", {})
    trainer |= {
        "max_steps": most_steps,
        "epochs": most_steps,
        "commit_every": most_steps,
        "evaluate_every": None,
    }
    schedule = (trainer.get("optimizer") or {}).get("schedule") or {}
    if "warmup_steps" in schedule:
        schedule["warmup_steps"] = min(schedule["warmup_steps"], most_steps)
    return tree


def _spent(changes: PhaseChanges, phase: str, at_s: Float64[np.ndarray, "moment"]) -> Float64[np.ndarray, "moment"]:
    """Return the seconds spent in a phase until each time."""
    in_phase = np.array([item == phase for item in changes.phases], np.float64)
    spent = np.concatenate(([0.0], np.cumsum(np.diff(changes.at_s) * in_phase[:-1])))
    return np.asarray(np.interp(at_s, changes.at_s, spent))
