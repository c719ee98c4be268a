"""Records a run that another training loop drives: metrics, phases, attempts, rows and checkpoints.

    with record("digits/lr-1e-3", config=vars(arguments)) as run:
        run.watch(model, optimizer, loader)             # phases, steps and rows, by hooks of torch
        ...
            run.log(step, {"loss": loss.item()}, rows=len(batch))
            run.checkpoint("out/step-100", step)        # after it was saved

Each process appends to segments of its own, one write per event, so what was recorded survives SIGKILL. Only wrong
input raises, before the first step. Later faults of recording, such as a full disk, end the record with one warning,
and never the training. A process forked from a recording one, such as a loader's worker, records nothing.
"""

import atexit
import json
import os
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import wraps
from numbers import Real
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self

from assay.base.clock import SystemClock
from assay.base.errors import AssayError, ConfigError
from assay.base.names import checked_name
from assay.elastic.failures import kind_of, signature_of
from assay.integrations.adopted_checkpoints import CheckpointAdopter, SavedCheckpoint
from assay.integrations.recorded_run import (
    UNKNOWN_ROWS,
    OpenAttempt,
    RecordRequest,
    begin_attempt,
    join_attempt,
    roll_back,
    save_run,
)
from assay.records.commit import RunFinished
from assay.records.failure import Failure
from assay.records.phase import Phase
from assay.records.row_receipts import RowReceipt
from assay.records.run import Attempt
from assay.store.attempts import failure_of_ranks, rank_failure_path, save_attempt
from assay.store.home import Home
from assay.store.launches import end_launch_here
from assay.store.ledger.writer import mark_missed
from assay.store.metrics.segment import SegmentWriter, segment_path

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

JOIN_S = 5.0
"""Ranks other than 0 wait at most this long for the attempt at the start; later they look once a second."""
LOOK_EVERY_S = 1.0
MAX_RECEIPT_ROWS = 2_000  # an event of a segment has a largest size
UNKNOWN_LOADING = "data loading is part of compute, unless the script calls watch or phase"
RENAMED = {"grad_norm": "gradient_norm"}
"""Names of other tools to those that warnings and triage read."""

P = ParamSpec("P")


def _unless_off(
    method: "Callable[Concatenate[RunRecorder, P], None]",
) -> "Callable[Concatenate[RunRecorder, P], None]":
    """Return a method that does nothing once recording has ended, and never raises."""

    @wraps(method)
    def guarded(self: "RunRecorder", /, *args: P.args, **kwargs: P.kwargs) -> None:
        if self._is_on:
            try:
                method(self, *args, **kwargs)
            except Exception as error:
                self._give_up(error)

    return guarded


class RunRecorder:
    """One process's record of a run; a context manager, or ended by `end`."""

    def __init__(self, request: RecordRequest, *, start_step: int | None = None) -> None:
        """Begin an attempt, or join that of rank 0. `start_step`: where the loop resumed, if known.

        Raises `ConfigError` for a wrong argument, before anything is written.
        """
        request = _checked(request)
        start_step = None if start_step is None else _whole(start_step, of="start_step")
        world_size = int(os.environ.get("WORLD_SIZE", "1"))
        if request.devices < world_size or request.devices % world_size:
            raise ConfigError(f"run '{request.name}': devices={request.devices} is no multiple of {world_size} ranks.")
        checked_name(request.name.replace("/", "-"), of="the run's name")
        if (before := _recorders.pop(request.run_id(), None)) is not None:  # a cell of a notebook, or the next fit
            before.end(RuntimeError("the recording was begun again in the same process"))
        _recorders[request.run_id()] = self
        self._request = request
        self._home = Home.from_environment()
        self._is_on = True
        self._problem = ""
        self._opened: OpenAttempt | None = None
        self._segments: list[SegmentWriter] = []
        self._adopter: CheckpointAdopter | None = None
        self._loader: Any = None
        self._handed_out: dict[int, list[int]] = {}
        """Step of the loader -> rows since the last receipt."""
        self._receipts: list[SegmentWriter] = []
        """The segment of receipts, once there is one."""
        self._phase: Phase = "startup"
        self._has_phases = False
        self._has_start = start_step is not None
        self._step = start_step or 0
        self._uncounted = 0
        """Steps that the optimizer made before it is known at which step the loop began."""
        self._step_began_s = time.monotonic()
        self._rows = 0
        self._next_look_s = 0.0
        self._hooks: list[Any] = []
        self._begin(start_step)
        atexit.register(self._end_at_exit)

    @property
    def run_id(self) -> str:
        """The run's id."""
        return self._request.run_id()

    @property
    def step(self) -> int:
        """The last optimizer step that is done."""
        return self._step + self._uncounted

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end(error)

    # While it trains

    @_unless_off
    def phase(self, name: Phase) -> None:
        """Record that the devices enter a phase: `data`, `compute`, `checkpoint`, `evaluation` or `idle`."""
        if not self._has_phases:
            self._has_phases = True
            self._note_known(UNKNOWN_LOADING)
        self._enter(name)

    @_unless_off
    def log(self, step: int, metrics: Mapping[str, Any] | None = None, *, rows: int | None = None) -> None:
        """Record metrics of an optimizer step; the first call for a step also records that it is done.

        `rows`: of the step, over all ranks. Values that are no numbers are left out.
        """
        self._join(wait_s=0.0)
        numbers = dict(_numbers(metrics or {}))
        if rows is not None:
            numbers["rows"] = float(rows)
            self._rows += rows
        if step > self._step:
            if not self._has_start:
                self._start_at(max(0, step - max(1, self._uncounted)))
            now_s = time.monotonic()
            numbers["step_s"] = now_s - self._step_began_s
            self._step, self._step_began_s = step, now_s
            self._write_receipts(step)
            for segment in self._segments[1:]:
                segment.log(step, {})
        elif not numbers:
            return
        for segment in self._segments[:1]:
            segment.log(step, numbers if self._request.rank == 0 else {})
        if not self._has_phases:
            self._enter("compute")

    @_unless_off
    def checkpoint(self, path: str | os.PathLike[str], step: int | None = None) -> None:
        """Adopt a checkpoint that has been written, a folder or a file: its files are named by digest, not copied."""
        if self._adopter is not None and (saved := Path(path)).exists():
            self._adopter.add(SavedCheckpoint(saved, self.step if step is None else step, self._rows))
            self._rows = 0
            mark_missed(self._home, self.run_id)
        if self._phase == "checkpoint":
            self._enter("data" if self._has_phases else "compute")

    @_unless_off
    def recover_checkpoint(self, path: Path, step: int) -> None:
        """Adopt the checkpoint that the loop resumed from, unless the attempt that wrote it did so before its death."""
        if self._opened is not None and self._adopter is not None and path.exists():
            recorded = [commit.adopted_from for commit in self._opened.log.commits()]
            if str(path.resolve()) not in recorded:
                self._adopter.add(SavedCheckpoint(path, step, 0))

    @_unless_off
    def resumed(self, start: int | str | os.PathLike[str]) -> None:
        """Record where the script resumed: the step, or the path of a checkpoint that was recorded."""
        if isinstance(start, int):
            self._start_at(start)
        elif self._opened is not None:
            path = Path(start).resolve()
            recorded = self._opened.log.commits()
            steps = [item.step for item in recorded if Path(item.adopted_from) in (path, path.parent)]
            if steps:
                self._start_at(steps[-1])

    def watch(self, model: "nn.Module", optimizer: "Optimizer | None" = None, loader: Any = None) -> None:
        """Record phases by the model's forward passes, and steps by the optimizer's, with hooks of torch.

        From a training forward pass to the end of the optimizer's step is `compute`, then `data` until the next one;
        forward passes in evaluation mode are `evaluation`. Without an optimizer, steps end at `log`. `loader`: an
        `assay.torch.RowLoader`, whose rows are recorded at the end of each step.
        """
        if loader is not None and not hasattr(loader, "on_rows"):
            raise ConfigError(f"watch(loader=...): a {type(loader).__name__} does not show its rows; RowLoader does.")
        self.watch_rows(loader)
        if self._is_on:
            self._hooks.append(model.register_forward_pre_hook(self._on_forward))
        if self._is_on and optimizer is not None:
            self._hooks.append(optimizer.register_step_post_hook(self._on_step))

    @_unless_off
    def watch_rows(self, loader: Any) -> None:
        """Record the rows that a loader of training hands out, if it is an `assay.torch.RowLoader`."""
        if hasattr(loader, "on_rows"):
            self._loader, loader.on_rows = loader, self._note_rows
            self._note_known(UNKNOWN_ROWS)

    def _note_known(self, unknown: str) -> None:
        """Take a sentence out of what is not known of the run."""
        if self._opened is not None and not self._request.rank and (imported := self._opened.run.imported) is not None:
            left_out = tuple(text for text in imported.left_out if text != unknown)
            if left_out != imported.left_out:
                known = imported.model_copy(update={"left_out": left_out})
                self._opened = self._opened._replace(
                    run=save_run(self._opened.run.model_copy(update={"imported": known}))
                )
                mark_missed(self._home, self.run_id)

    @_unless_off
    def _note_rows(self, loader_step: int, rows: Sequence[int]) -> None:
        self._handed_out.setdefault(loader_step, []).extend(rows)

    def note(self, text: str) -> None:
        """Record a message, shown with those of the run's ranks."""
        if self._is_on and self._segments:
            with suppress(AssayError):
                self._segments[0].event(text)

    # The end

    def end(self, error: BaseException | None = None) -> None:
        """End the attempt: `succeeded`, or by an exception. A second call does nothing."""
        if self._opened is None:
            return
        opened, self._opened = self._opened, None
        _recorders.pop(self.run_id, None)
        atexit.unregister(self._end_at_exit)
        for hook in self._hooks:
            hook.remove()
        try:
            self._close(opened, error)
        except Exception as problem:
            self._give_up(problem)
        self._is_on = False

    def _close(self, opened: OpenAttempt, error: BaseException | None) -> None:
        if self._adopter is not None:
            if self._is_on:
                self._enter("checkpoint")
            self._adopter.close()
            while not self._adopter.problems.empty():
                self.note(self._adopter.problems.get())
        for segment in (*self._segments, *self._receipts):
            with suppress(AssayError):
                segment.close()
        self._step = self.step
        failure = None if error is None else self._failure(opened, error)
        if self._request.rank:
            if failure is not None:
                path = rank_failure_path(Path(opened.run.run_dir), opened.attempt.attempt, self._request.rank)
                path.parent.mkdir(exist_ok=True)
                path.write_text(failure.to_json())
            return
        if failure is not None and failure.failure_kind == "peer_lost":
            failure = failure_of_ranks(opened.run, opened.attempt) or failure
        ended = opened.attempt.model_copy(
            update={
                "ended_s": SystemClock().now_s(),
                "end_step": max(opened.attempt.start_step, self._step),
                "outcome": _outcome(error),
                "reason": self._problem if failure is None else failure.sentence(opened.run.run_dir),
                "failure": failure if _outcome(error) == "failed" else None,
                "devices": self._devices(opened.attempt),
            }
        )
        save_attempt(Path(opened.run.run_dir), ended)
        num_steps = max(1, self._request.num_steps or 0, self._step)
        run = save_run(opened.run.model_copy(update={"num_steps": num_steps}))
        if ended.outcome == "succeeded":
            commits = opened.log.commits()
            digest = commits[-1].weights_digest if commits else ""
            opened.log.append(RunFinished(attempt=ended.attempt, step=self._step, weights_digest=digest))
        end_launch_here(run)
        mark_missed(self._home, self.run_id)

    def _end_at_exit(self) -> None:
        """End an attempt that the loop left open, by the exception that ends the interpreter if there is one."""
        error = getattr(sys, "last_value", None)
        self.end(error or RuntimeError("the script ended before its training did"))

    def _failure(self, opened: OpenAttempt, error: BaseException) -> Failure:
        run_dir, attempt, rank = Path(opened.run.run_dir), opened.attempt.attempt, self._request.rank
        path = rank_failure_path(run_dir, attempt, rank).with_suffix(".txt")
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(traceback.format_exception(error)))
        return Failure(
            failure_kind=kind_of(error),
            run_id=opened.run.run_id,
            attempt=attempt,
            rank=rank,
            host=socket.gethostname(),
            phase=self._phase,
            step=self._step + 1,
            signature=signature_of(error, package=""),
            text=f"{type(error).__name__}: {error}".splitlines()[0],
            file=path.relative_to(run_dir).as_posix(),
        )

    # The attempt and its segments

    def _begin(self, start_step: int | None) -> None:
        try:
            if self._request.rank:
                self._join(wait_s=JOIN_S)
            else:
                self._record_in(begin_attempt(self._home, self._request, start_step=start_step))
        except ConfigError:
            raise
        except Exception as error:
            self._give_up(error)

    def _join(self, *, wait_s: float) -> None:
        """Look for the attempt that rank 0 began."""
        if self._opened is not None or not self._request.rank:
            return
        until_s = time.monotonic() + wait_s
        while self._opened is None and self._next_look_s <= time.monotonic():
            opened = join_attempt(self._home, self._request, after=_joined.get(self.run_id, 0))
            if opened is not None:
                self._record_in(opened)
            elif time.monotonic() < until_s:
                time.sleep(0.05)
            else:
                self._next_look_s = time.monotonic() + LOOK_EVERY_S

    def _record_in(self, opened: OpenAttempt) -> None:
        number, run_dir = opened.attempt.attempt, Path(opened.run.run_dir)
        if self._request.rank:
            _joined[self.run_id] = number
        num_own = max(1, self._request.devices // max(1, int(os.environ.get("WORLD_SIZE", "1"))))
        first = self._request.rank * num_own
        for rank in range(first, first + num_own):
            path = segment_path(run_dir, number, rank)
            self._segments.append(SegmentWriter(path, run_id=self.run_id, attempt=number, rank=rank))
        self._opened = opened
        if not self._request.rank:
            self._adopter = CheckpointAdopter(opened.log, self._request.devices)
            if opened.changes:
                self.note(f"parameters changed: {', '.join(opened.changes)}")

    def _start_at(self, step: int) -> None:
        """Record the step after which this attempt begins, which rolls back later steps of earlier ones."""
        self._has_start, self._step, self._uncounted = True, step, 0
        if self._opened is not None and not self._request.rank:
            attempt = self._opened.attempt.model_copy(update={"start_step": step})
            self._opened = self._opened._replace(attempt=attempt)
            save_attempt(Path(self._opened.run.run_dir), attempt)
            roll_back(self._opened.run, attempt)
            mark_missed(self._home, self.run_id)

    def _enter(self, name: Phase) -> None:
        if name != self._phase:
            self._phase = name
            for segment in self._segments:
                segment.phase(name)

    def _write_receipts(self, step: int) -> None:
        """Record the rows that the loader handed out since the last step, if any."""
        if self._loader is None or self._opened is None:
            return
        if not self._receipts:
            number, rank = self._opened.attempt.attempt, self._request.rank
            path = segment_path(Path(self._opened.run.run_dir), number, rank, of="rows")
            self._receipts = [SegmentWriter(path, run_id=self.run_id, attempt=number, rank=rank)]
            self._receipts[0].event(json.dumps(self._loader.facts()))
        for loader_step, rows in self._handed_out.items() or [(0, [])]:
            for first in range(0, max(1, len(rows)), MAX_RECEIPT_ROWS):
                receipt = RowReceipt(step, loader_step, rows[first : first + MAX_RECEIPT_ROWS])
                self._receipts[0].event(json.dumps(receipt))
        self._handed_out.clear()

    def _on_forward(self, model: "nn.Module", _: Any) -> None:
        self.phase("compute" if model.training else "evaluation")

    def _on_step(self, *_: Any) -> None:
        if self._has_start:
            self.log(self._step + 1)
        else:
            self._uncounted += 1
        self.phase("data")

    def _devices(self, attempt: Attempt) -> tuple[str, ...]:
        torch = sys.modules.get("torch")
        has_gpu = torch is not None and torch.cuda.is_available()
        return (
            tuple(f"cuda:{rank}" if has_gpu else "cpu" for rank in range(attempt.world_size)) if attempt.hosts else ()
        )

    def _give_up(self, error: Exception) -> None:
        """Stop recording, and warn once."""
        if not self._is_on:
            return
        self._is_on = False
        self._problem = f"recording ended after step {self._step}: {error}"
        print(
            f"assay: run '{self.run_id}' is not recorded after step {self._step}: {type(error).__name__}: {error} "
            "Training goes on; what was recorded before is kept.",
            file=sys.stderr,
        )


_recorders: dict[str, RunRecorder] = {}
"""Run id to its recorder, if it has not ended."""


def _leave_recorders() -> None:
    """Leave the recorders to the parent of a process that was forked, such as a loader's worker."""
    for recorder in _recorders.values():
        recorder._is_on, recorder._opened = False, None
    _recorders.clear()


os.register_at_fork(after_in_child=_leave_recorders)
_joined: dict[str, int] = {}
"""Run id to the attempt that this process joined last: a second training in the process joins a later one."""


def _numbers(metrics: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the values that are numbers, scalar tensors included, under the names that warnings read."""
    for name, value in metrics.items():
        if isinstance(value, str | bytes):
            continue
        try:
            number, named = float(value), RENAMED.get(name, name)
        except (TypeError, ValueError, RuntimeError):
            continue
        yield f"validation_{named[5:]}" if named.startswith("eval_") else named, number


def _checked(request: RecordRequest) -> RecordRequest:
    """Return the request with plain numbers. Raises `ConfigError` for what would end the record once it is written."""
    if not isinstance(request.name, str):
        raise ConfigError(f"name={request.name!r:.80}: expected 'PROJECT/RUN', or the run's name alone.")
    if not isinstance(request.config, Mapping):
        raise ConfigError(f"config={request.config!r:.80}: expected a dictionary of the run's parameters.")
    num_steps = None if request.num_steps is None else _whole(request.num_steps, of="num_steps")
    return request._replace(devices=_whole(request.devices, of="devices"), num_steps=num_steps)


def _whole(value: Any, *, of: str) -> int:
    """Return a whole number, be it one of NumPy's or a float such as 1e4."""
    if isinstance(value, Real) and (number := float(value)).is_integer():
        return int(number)
    raise ConfigError(f"{of}={value!r:.80}: expected a whole number.")


def _outcome(error: BaseException | None) -> str:
    if error is None:
        return "succeeded"
    is_stop = isinstance(error, KeyboardInterrupt) or (isinstance(error, SystemExit) and not error.code)
    return "preempted" if is_stop else "failed"


def record(
    name: str,
    *,
    config: Mapping[str, Any] | None = None,
    devices: int | None = None,
    num_steps: int | None = None,
    start_step: int | None = None,
) -> RunRecorder:
    """Record the run of a training loop; a run that begins again by the same name is its next attempt.

    `name`: `PROJECT/RUN`, or the run's name alone. `config`: its parameters. `devices`: of all processes, if they are
    not one for each process of torchrun. `num_steps`: how many are planned. `start_step`: where the loop resumed, else
    one before the first step that is logged. Every process of torchrun calls it; rank 0 records metrics. Raises
    `AssayError` for a wrong name; later faults of recording are warnings, and never end the training.
    """
    devices = int(os.environ.get("WORLD_SIZE", "1")) if devices is None else devices
    rank = int(os.environ.get("RANK", "0"))
    request = RecordRequest(name, "python", config or {}, devices, num_steps, rank, (UNKNOWN_LOADING,))
    return RunRecorder(request, start_step=start_step)
