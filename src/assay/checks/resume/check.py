"""The exercises of a check: run a script undisturbed, then disturb it, let it resume, and judge what it did.

    undisturbed, twice --> where it saves --> kill at a chosen instruction --> resume to the end --> judge

All attempts write to one folder, because checkpoints may hold its path; a snapshot of it brings a kill back for
further exercises. The user's own files are only read.
"""

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from filecmp import cmp
from pathlib import Path
from signal import SIGTERM
from typing import NamedTuple

from assay.base.errors import ConfigError
from assay.base.units import number_of
from assay.checks.resume.attempt import ScriptAttempt, ScriptCommand, Stop, run_attempt
from assay.checks.resume.observed import SavedFiles
from assay.checks.resume.properties import (
    Baseline,
    History,
    PropertyResult,
    Results,
    compare_training,
    fails,
    first_history,
    holds,
)

EXERCISES = {
    "step": "SIGKILL between two saves",
    "startup": "SIGKILL before the first step of a resume",
    "save": "SIGKILL with the first file of a save half written",
    "last-file": "SIGKILL with the last file of a save half written",
    "last-step": "SIGKILL before the last step",
    "sigterm": "SIGTERM between two saves",
    "damaged": "the newest checkpoint is cut to half its size while the script is down",
    "again": "the first command, instead of the resume's, after a kill",
    "workers": "resumed at another world size",
}
LATE = 2 / 3
"""Share of the steps after which the script is disturbed: several saves lie before, and much of an epoch remains."""


class ExerciseResult(NamedTuple):
    """What one disturbance showed."""

    name: str
    what: str
    results: Results
    stopped_step: int | None = None
    resumed_step: int | None = None
    first_new_step_s: float | None = None
    """Seconds from the start of the resume to the end of the first step that was not trained before."""
    lost_device_s: float | None = None
    """The same, times the workers: device time that an undisturbed run would not have spent."""
    exit_codes: tuple[int | None, ...] = ()


class ResumeCheck(NamedTuple):
    """Everything that a check found."""

    baseline: Baseline
    baseline_s: float
    exercises: tuple[ExerciseResult, ...]
    notes: tuple[str, ...]
    """What was not tried or not seen, and why."""


class ResumeCheckRun:
    """A check at work: its commands, its folder and what it knows of the undisturbed run."""

    def __init__(
        self,
        command: ScriptCommand,
        resume: ScriptCommand,
        scratch: Path,
        *,
        workers: Sequence[int],
        exercises: Sequence[str],
        on_exercise: Callable[[str], None],
    ) -> None:
        """`workers`: world sizes; the script starts at the first. `on_exercise`: called with what is done next."""
        self._command, self._resume, self._scratch = command, resume, scratch
        self._out, self._snapshot = command.out, scratch / "snapshot"
        self._workers, self._names, self._on_exercise = workers, exercises, on_exercise
        self._num_attempts = 0
        self._notes: list[str] = []
        self._is_restarting = False
        """It never resumes, so that no exercise shows more than the first."""

    def run(self) -> ResumeCheck:
        """Run the exercises. Raises `ConfigError` if the undisturbed script fails, is not observable, or writes to
        other folders."""
        self._on_exercise("undisturbed")
        first = self._undisturbed()
        self._on_exercise("undisturbed, again")
        baseline = Baseline(first.training, self._undisturbed().training)
        saves = [save for save in first.training.saves if 0 < save.step < len(baseline.steps)]
        if not saves:
            where = "at its end only" if first.training.saves else "no checkpoint"
            text = f"it saved {where}, in {number_of(len(baseline.steps), 'step')}; let it save more often"
            exercise = ExerciseResult("undisturbed", "none", {"resumes": fails(text), **_process_results(first)})
            return ResumeCheck(baseline, first.seconds, (exercise,), tuple(self._notes))
        exercises = [exercise for exercise in self._exercises(baseline, saves) if exercise.results]
        return ResumeCheck(baseline, first.seconds, tuple(exercises), tuple(self._notes))

    def _undisturbed(self) -> ScriptAttempt:
        self._empty()
        attempt = self._attempt(self._command, self._workers[0])
        if attempt.exit_code != 0:
            fix = " Give it more, or let it train fewer steps." if attempt.exit_code is None else ""
            raise ConfigError(f"Undisturbed, the script {attempt.problem}.{fix}")
        if not attempt.training.steps:
            raise ConfigError(
                "The script ended with exit code 0, but no step of a torch optimizer was seen in its Python processes. "
                "Is it PyTorch, in a python without -I, -E or -S, and outside of containers?"
            )
        return attempt

    def _exercises(self, baseline: Baseline, saves: Sequence[SavedFiles]) -> Iterator[ExerciseResult]:
        total = len(baseline.steps)
        index = min(range(len(saves)), key=lambda at: abs(saves[at].step - LATE * total))
        following = saves[index + 1].step if index + 1 < len(saves) else total
        step = saves[index].step + max(1, (following - saves[index].step) // 2)
        after_step = Stop("step", min(step, total - 1))
        killed = self._killed(after_step)
        self._keep()
        number = min(index + 1, len(saves) - 1)
        files = saves[number].num_files
        for name in self._names:
            if reason := self._reason_untried(name, files):
                self._notes.append(f"{name}: not tried, because {reason}.")
                continue
            self._on_exercise(EXERCISES[name])
            match name:
                case "step":
                    yield self._resumed(baseline, name, [killed])
                case "startup":
                    self._bring_back()
                    # A resume that trains has a forward before its first step.
                    again = self._attempt(self._resume, self._workers[0], Stop("forward", 1))
                    yield self._resumed(baseline, name, [killed, again])
                case "save" | "last-file":
                    stop = Stop("save", number + 1, files if name == "last-file" else 1)
                    yield self._resumed(baseline, name, [self._killed(stop)])
                case "last-step":
                    yield self._resumed(baseline, name, [self._killed(Stop("forward", total))])
                case "sigterm":
                    yield self._resumed(baseline, name, [self._killed(after_step._replace(signal=SIGTERM))])
                case "damaged":
                    self._bring_back()
                    if self._damage(killed.training.saves):
                        yield self._resumed(baseline, name, [killed])
                    else:
                        self._notes.append(f"{name}: not tried, because no save was seen whole after the kill.")
                case "again":
                    yield self._started_again(killed)
                case "workers":
                    for size in self._workers[1:]:
                        self._bring_back()
                        yield self._resumed(baseline, name, [killed], workers=size)

    def _killed(self, stop: Stop) -> ScriptAttempt:
        self._empty()
        attempt = self._attempt(self._command, self._workers[0], stop)
        if not attempt.is_stopped:
            raise ConfigError(
                f"The script did not reach {stop.at} {stop.number} a second time; it {attempt.problem}. Does it do "
                "the same at each start, and does it write everything to {out}?"
            )
        return attempt

    def _resumed(
        self, baseline: Baseline, name: str, attempts: list[ScriptAttempt], *, workers: int | None = None
    ) -> ExerciseResult:
        """Resume to the end and judge. `attempts`: those so far; the first began from nothing."""
        if name == "step":
            self._bring_back()
        size = workers or self._workers[0]
        stopped = len(attempts[0].training.steps)
        what = EXERCISES[name] + (f": {self._workers[0]} to {size} workers" if workers else "")
        whole = [save for save in attempts[0].training.saves if save.is_whole(self._out)]
        results = _stop_results(baseline, name, attempts[0])
        if stopped >= len(baseline.steps):
            self._notes.append(f"{name}: not resumed, because the script had trained to its end.")
            return ExerciseResult(name, what, results, stopped, exit_codes=(attempts[0].exit_code,))
        last = self._attempt(self._resume, size, checkpoint=self._checkpoint(whole))
        history = first_history(attempts[0].training)
        results |= self._judge(baseline, name, history, whole, attempts[0], last)
        codes = tuple(attempt.exit_code for attempt in (*attempts, last))
        if last.training.before is None:
            return ExerciseResult(name, what, results, stopped, exit_codes=codes)
        start, _ = history.restored(last.training, baseline.initial_distance)
        ahead = last.training.steps[stopped - start :]
        new_s = ahead[0].at_s - last.started_s if ahead else None
        return ExerciseResult(name, what, results, stopped, start, new_s, new_s and new_s * size, codes)

    def _judge(
        self,
        baseline: Baseline,
        name: str,
        history: History,
        whole: Sequence[SavedFiles],
        stopped: ScriptAttempt,
        last: ScriptAttempt,
    ) -> Results:
        """Judge the attempt that went on to the end."""
        newest = max((save.step for save in whole), default=0)
        # Files that are written elsewhere and copied are not found again.
        copied = max((save.step for save in stopped.training.saves if not save.files), default=0)
        is_damage = name == "damaged" or (stopped.is_torn and name in ("save", "last-file"))
        blamed = "resumes" if not is_damage or self._is_restarting else "torn" if whole or name == "damaged" else "kept"
        state = f"step {copied} was saved" if copied else "no whole checkpoint was left"
        if whole:
            state = f"step {newest} was whole"
        results = _process_results(last)
        if is_damage and whole:
            results["kept"] = holds(f"{number_of(len(whole), 'whole checkpoint')} left")
        if last.exit_code != 0 or last.training.before is None:
            if last.exit_code == 0 and not last.is_observed:
                raise ConfigError(f"The resume was not observed, unlike the first run: it {last.problem}.")
            if last.exit_code == 0:
                # After damage an error was hidden; else rows were left out.
                return results | {
                    "exit_code" if is_damage else "rows": fails(f"trained nothing more, and exited with 0; {state}")
                }
            if name == "damaged":
                return results | {"torn": holds(f"refused by exit code {last.exit_code}; {state}")}
            return results | {blamed: fails(f"{state}, but the resume {last.problem}")}
        start, distance = history.restored(last.training, baseline.initial_distance)
        if start == 0 and (newest > 0 or copied > 0 or is_damage):
            changed = [save for save in whole if not save.is_whole(self._out)]
            loss = f", and overwrote {changed[-1].files[0][0]}" if changed else _other_names(baseline)
            self._is_restarting |= name == "step"
            return results | {blamed: fails(f"started from nothing, though {state}{loss}")}
        if start == 0:
            return results
        if copied and not whole:
            results["newest"] = PropertyResult(
                "unseen", "its files are copied into the output folder after they are saved"
            )
        elif name != "damaged":
            results["newest"] = (
                holds() if start >= newest else fails(f"went on from step {start}, though step {newest} was whole")
            )
        results["resumes"] = holds(f"from step {start}")
        if is_damage:
            results["torn"] = holds(f"went on from step {start}")
        return results | compare_training(baseline, history, last.training, start, distance)

    def _reason_untried(self, name: str, num_files: int) -> str:
        """Return why an exercise cannot be tried; empty if it can. `num_files`: of a save."""
        if name == "last-file" and num_files == 1:
            return "a save is one file"
        if name == "again" and self._command.words == self._resume.words:
            return "the resume has the same command"
        return "--workers has one number" if name == "workers" and len(self._workers) == 1 else ""

    def _started_again(self, killed: ScriptAttempt) -> ExerciseResult:
        self._bring_back()
        whole = [save for save in killed.training.saves if save.is_whole(self._out)]
        attempt = self._attempt(self._command, self._workers[0])
        lost = [save.files[0][0] for save in whole if not save.is_whole(self._out)]
        result = fails(f"the first command overwrote {lost[-1]}") if lost else holds(f"{attempt.problem}")
        return ExerciseResult("again", EXERCISES["again"], {"kept": result}, exit_codes=(attempt.exit_code,))

    def _attempt(
        self, command: ScriptCommand, workers: int, stop: Stop | None = None, *, checkpoint: str = ""
    ) -> ScriptAttempt:
        self._num_attempts += 1
        folder = self._scratch / "attempts" / f"{self._num_attempts:03}"
        attempt = run_attempt(command, workers, folder, stop, checkpoint=checkpoint)
        if attempt.outside:
            raise ConfigError(
                f"The script tried to write {attempt.outside}, outside of its output folder. It was stopped before "
                "that. Give it its folder by {out} in the command, or by --out-variable."
            )
        return attempt

    def _checkpoint(self, whole: Sequence[SavedFiles]) -> str:
        """Return the path of the newest whole checkpoint, for a command that takes one: its file, or its folder."""
        if not whole:
            return ""
        first = self._out / whole[-1].files[0][0]
        return str(first if len(whole[-1].files) == 1 else first.parent)

    def _damage(self, saves: Sequence[SavedFiles]) -> bool:
        """Cut the largest file of the newest whole save and its copies under other names, such as `last.ckpt`. Return
        whether there is one: files that are written elsewhere and copied are no save that can be seen."""
        whole = [save for save in saves if save.is_whole(self._out)]
        if not whole:
            return False
        name, size, _ = max(whole[-1].files, key=lambda file: file[1:])
        files = [path for path in self._out.rglob("*") if path.is_file()]
        for path in [path for path in files if cmp(path, self._out / name, shallow=False)]:
            os.truncate(path, size // 2)
        return True

    def _empty(self) -> None:
        shutil.rmtree(self._out, ignore_errors=True)
        self._out.mkdir(parents=True)

    def _keep(self) -> None:
        shutil.copytree(self._out, self._snapshot, symlinks=True)

    def _bring_back(self) -> None:
        shutil.rmtree(self._out)
        shutil.copytree(self._snapshot, self._out, symlinks=True)


def _stop_results(baseline: Baseline, name: str, stopped: ScriptAttempt) -> Results:
    """Judge how an attempt ended after SIGTERM."""
    if name != "sigterm":
        return {}
    missing = len(baseline.steps) - len(stopped.training.steps)
    results: Results = {"sigterm": holds(f"exit code {stopped.exit_code}")}
    if stopped.exit_code is None:
        results["sigterm"] = fails("still at work after its grace; end on SIGTERM, or give more by --grace")
    if stopped.exit_code == 0 and missing:
        results["exit_code"] = fails(f"0 after SIGTERM, with {number_of(missing, 'step')} missing")
    elif stopped.exit_code is not None:
        results["exit_code"] = holds(f"{stopped.exit_code} after SIGTERM")
    return results | _process_results(stopped)


def _other_names(baseline: Baseline) -> str:
    """Return that a script saves under other names at each start, if it does: then it may not find its checkpoints."""
    one, other = ({name for save in training.saves for name, *_ in save.files} for training in baseline)
    return "" if one == other else f"; each start saves under other names, such as {min(other - one, default='none')}"


def _process_results(attempt: ScriptAttempt) -> dict[str, PropertyResult]:
    if not attempt.lingering:
        return {"processes": holds()}
    text = f"{number_of(len(attempt.lingering), 'process', 'processes')} left, such as: {attempt.lingering[0][:200]}"
    return {"processes": fails(text)}
