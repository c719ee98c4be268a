"""A short real run of a variant, in a home that is removed, which can be made to pause between turns.

It is `assay train` in a process of its own, so that it may be of another commit than this one, in a session of
its own, which is stopped and continued as a whole (SIGSTOP, SIGCONT). What it measures is what its first rank
recorded: the ends of steps, and the phases between them.

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
"""How often it is looked at in its turn."""
STOP_TIMEOUT_S = 60.0
"""For which a run that was asked to leave may commit."""
PAUSE_S = 3600
"""For which a rank may stand still before it counts as hung."""
_GUARD = """\
read -r word && exit
kill -s CONT -- "-$1"; kill -s TERM -- "-$1"; sleep $2; kill -s KILL -- "-$1"
"""
"""Whoever measures may be killed; what it had stopped would stand there for good."""


class Variant(NamedTuple):
    """What is run."""

    name: str
    recipe: Mapping[str, Any]
    source: Path | None = None
    """The folder with its code; None for the code that runs here."""
    commit: str = ""
    """Which commit that folder has to hold."""


class VariantError(TrainingError):
    """A variant that cannot be run."""

    def __init__(self, variant: str, reason: str) -> None:
        super().__init__(f"{variant} does not run: {reason}")
        self.variant = variant
        self.reason = reason


class ShortRun:
    """One. A context: it has left, and its home is gone, when this ends."""

    def __init__(self, variant: Variant, *, workers: int, most_steps: int, clock: Clock) -> None:
        """Start it. `most_steps`: after which it ends by itself."""
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
        # -P: a folder `assay` where the command was typed is not the variant's code.
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
        self._signal(signal.SIGKILL)  # what does not leave, or was left behind by what did
        self._process.wait()
        self._guard.communicate(b"left\n")
        self._folder.cleanup()

    def advance(self, to_step: int) -> None:
        """Let it run until a step has ended, then stop it. Raises `VariantError` where it ends before."""
        start_s = self._clock.monotonic_s()
        self._signal(signal.SIGCONT)
        while self.num_steps() < to_step:
            if self._process.poll() is not None and self.num_steps() < to_step:
                raise VariantError(self._variant.name, self._failure_reason())
            self._clock.sleep_s(POLL_S)
        self._signal(signal.SIGSTOP)
        self._intervals.append((start_s, self._clock.monotonic_s()))

    def num_steps(self) -> int:
        """That have ended."""
        segment = self._segment()
        return 0 if segment is None else int(segment.step_ends.steps.max(initial=0))

    def counted_steps(self, warm_up: int) -> CountedSteps:
        """The steps behind `warm_up` that lie in a turn as a whole, without the first one in each."""
        segment = self._segment()
        assert segment is not None
        # What is logged again of a step, its evaluation, is not its end.
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
        """Raise `VariantError` where other code ran than was asked for."""
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
        """To all of its processes."""
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            return

    def _failure_reason(self) -> str:
        """The first error that it gave."""
        ended = saved_attempts(self._run_dir)
        if ended and ended[0].reason:
            return ended[0].reason
        output = self._output.read_text(encoding="utf-8", errors="replace")
        _, is_known, error = f"\n{output}".partition("\nerror: ")
        if is_known:
            return error.strip()
        best = read_log(self._output).best
        return best.text if best else "it left without a word"


def short_recipe(recipe: Mapping[str, Any], most_steps: int) -> dict[str, Any]:
    """The recipe, without what is between steps: evaluations, and commits on the way."""
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
    """Seconds in a phase until each moment."""
    in_phase = np.array([item == phase for item in changes.phases], np.float64)
    spent = np.concatenate(([0.0], np.cumsum(np.diff(changes.at_s) * in_phase[:-1])))
    return np.asarray(np.interp(at_s, changes.at_s, spent))
