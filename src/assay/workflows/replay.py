"""Replays a step of a past run on one process, and compares its numbers with the record.

    nearest commit before N --replay--> step N --compare--> rank 0's record, bit for bit
                                          |
                                          +-- watch / audit operators, search rows, explain

Compared are loss, gradient norm and learning rate of every replayed step, and the digests of rollouts (if rows are
prompts), gradients (if a spot check recorded one) and weights (if there is a commit). Equal means equal bits.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from assay.base.code_version import code_version
from assay.data.dataset.dataset import Dataset
from assay.data.dataset.origin import row_origin, row_text
from assay.data.dataset.split import split_view
from assay.data.loader.batch import StepShare
from assay.data.loader.loader import Loader
from assay.elastic.capsules import nearest_commit
from assay.records.commit import Commit
from assay.records.replay import Compared, OperatorWatchReport, ReplayReport, RowFinding, RowSearch
from assay.records.run import Run
from assay.store.commit_log import CommitLog
from assay.store.metrics.recorded import RecordedStep, recorded_steps
from assay.training.methods.registry import method_of
from assay.training.model_folders import check_unchanged
from assay.training.numerics import digest_of_tensors
from assay.training.recipe import recipe_of
from assay.training.replay.audit import OutsideBound
from assay.training.replay.bad_rows import RowSearcher, finite
from assay.training.replay.replayer import Replayer
from assay.training.replay.request import Mode, ReplayRequest
from assay.training.replay.watch import NotFinite, OperatorWatch
from assay.training.trainer.step import StepTotals

NUM_EARLIER_STEPS = 32
"""Number of earlier steps to compare a step's rows with."""

MOST_ORIGINS = 20
"""Maximum number of rows whose text and source are looked up, because each reads a shard's source again."""

_COMPARED = ("rows", "rollout_digest", "tokens", "learning_rate", "loss", "gradient_norm", "gradient_digest")
"""Quantities of a step in the order of their computation."""

Progress = Callable[[int, int, int], None]
"""Called with the next, the first and the last step."""


def replay(run: Run, log: CommitLog, request: ReplayRequest, *, progress: Progress = lambda *_: None) -> ReplayReport:
    """Replay the steps from the nearest commit to the requested one, and compare."""
    recipe = recipe_of(run)
    check_unchanged(run, recipe)
    dataset = Dataset.open(Path(recipe.data.dataset))
    method = method_of(recipe.method)
    loader = Loader(split_view(dataset, recipe.data.split, "train"), recipe.loader, recipe.method.columns)
    last_step = recipe.trainer.num_steps(loader.steps_per_epoch)
    request.check(run, recipe.trainer, num_lanes=recipe.loader.lanes, last_step=last_step)
    steps = recorded_steps(Path(run.run_dir), attempt=request.attempt)
    request.check_attempt(steps)
    with Replayer.opened(method, loader, log, recipe.trainer, seed=recipe.seed) as replayer:
        found = _Replay(replayer, dataset, request, steps, _weights(log))
        # The commit must precede the step's rollouts, so that they are sampled again and not read.
        first = run.parent.step if run.parent else 0
        commit = nearest_commit(log, max(first + 1, request.step - replayer.source.lookahead))
        found.run(commit, progress)
    return found.report(run, commit)


@dataclass
class _Replay:
    """A replay in progress, and its results."""

    replayer: Replayer
    dataset: Dataset
    request: ReplayRequest
    steps: Mapping[int, RecordedStep]
    """The run's record by step."""
    weights: Mapping[int, str]
    """Committed weights digests by step."""
    compared: list[Compared] = field(default_factory=list)
    totals: StepTotals | None = None
    """Totals of the requested step."""
    lane_loss: float | None = None
    operators: OperatorWatchReport | None = None
    rows: RowSearch | None = None

    def run(self, commit: Commit | None, progress: Progress) -> None:
        if commit is not None:
            self.replayer.restore(commit)
        first, last = self.replayer.step + 1, self.request.last_step
        for share in self.replayer.shares(first, last):
            step = self.replayer.step + 1
            progress(step, first, last)
            totals = self._looked_at(share) if step == self.request.step else self.replayer.make(share)
            if totals is None or not totals.is_applied:
                break
            if self.operators is None or not self.operators.as_written:
                self.compared += self._comparisons(step, totals)

    def _looked_at(self, share: StepShare) -> StepTotals | None:
        """Replay the requested step; search its rows and compute the lane before the weights change."""
        request = self.request
        if request.search_rows:
            self.rows = self._searched(share)
        if request.lane is not None:
            self._make_lane(share, request.lane)
        self.totals = self._watched(share, request.mode) if request.mode else self.replayer.make(share)
        return self.totals

    def _make_lane(self, share: StepShare, lane_number: int) -> None:
        lane = share.lanes[lane_number]
        lane_result = self.replayer.recomputer.of(lane, step=self.request.step)
        self.lane_loss = lane_result.loss_sum / max(1, lane_result.weight)
        recorded = self.steps.get(self.request.step)
        if recorded is not None and lane_number in recorded.lane_digests:
            digest = float(digest_of_tensors(lane_result.gradients))
            name = f"lane {lane_number} gradient_digest"
            self.compared.append(compared_number(self.request.step, name, recorded.lane_digests[lane_number], digest))

    def _watched(self, share: StepShare, mode: Mode) -> StepTotals | None:
        """Replay the step under an operator watch; None if it raised an error."""
        inspector = NotFinite() if mode == "watch" else OutsideBound()
        replayer, raised, totals = self.replayer, "", None

        def where() -> tuple[int | None, object]:
            return replayer.forward.lane, replayer.forward.micro_batch

        forward = replayer.forward
        watch = OperatorWatch(
            replayer.model,
            inspector,
            where,  # type: ignore[arg-type]
            frozen_models=forward.frozen_models,
            is_forward=lambda: forward.is_under_way,
        )
        with replayer.as_written(), watch:
            try:
                totals = replayer.make(share)
            except (RuntimeError, IndexError, ValueError) as error:
                raised = f"{type(error).__name__}: {str(error).splitlines()[0]}"
        failed = totals is None or not totals.is_applied
        self.operators = OperatorWatchReport(
            mode=mode,
            finding=watch.finding or (watch.carried if failed else None),
            num_calls=watch.num_calls,
            num_operators=len(watch.operators),
            not_audited=getattr(inspector, "not_audited", {}),
            raised=raised,
            as_written=replayer.is_compiled,
        )
        return totals

    def _searched(self, share: StepShare) -> RowSearch:
        search, step = RowSearcher(self.replayer, share), self.request.step
        found = search.not_finite()
        if not found.rows and found.step_loss is not None and step > 1:
            found = search.too_high(list(self.replayer.shares(max(1, step - NUM_EARLIER_STEPS), step - 1)))
        return found.model_copy(update={"rows": tuple(map(self._located, found.rows, range(len(found.rows))))})

    def _located(self, row: RowFinding, index: int) -> RowFinding:
        """Return the row with its location and, for the first rows, with text and origin."""
        location = {"location": self.dataset.row_location(row.row_id)}
        if index < MOST_ORIGINS:
            location["text"] = row_text(self.dataset, row.row_id)
            location["origin"] = row_origin(self.dataset, row.row_id)
        return row.model_copy(update=location)

    def _comparisons(self, step: int, totals: StepTotals) -> Iterator[Compared]:
        lane_result = {
            "loss": totals.loss,
            "gradient_norm": totals.gradient_norm,
            "learning_rate": totals.learning_rate,
            "rows": totals.num_rows,
            "tokens": totals.num_tokens,
            **totals.digests,
        }
        recorded = self.steps.get(step)
        for name in _COMPARED:
            if recorded is not None and name in recorded.values and name in lane_result:
                yield compared_number(step, name, recorded.values[name], lane_result[name])
        if step in self.weights:
            then, now = self.weights[step], self.replayer.weights_digest()
            yield Compared(step=step, quantity="weights_digest", recorded=then, replayed=now, is_equal=then == now)

    def report(self, run: Run, commit: Commit | None) -> ReplayReport:
        request, totals = self.request, self.totals
        differences = [number for number in self.compared if not number.is_equal]
        at_step = [number for number in self.compared if number.step >= request.step]
        return ReplayReport(
            run_id=run.run_id,
            step=request.step,
            through_step=request.last_step,
            from_step=commit.step if commit else 0,
            attempt=self.steps[request.step].attempt if request.step in self.steps else 0,
            recorded_code_version=run.code_version,
            code_version=code_version(),
            verdict="differs" if differences else "equal" if at_step else "not recorded",
            compared=len(self.compared),
            at_step=tuple(at_step),
            first_difference=differences[0] if differences else None,
            loss=finite(totals.loss) if totals else None,
            gradient_norm=finite(totals.gradient_norm) if totals else None,
            lane_loss=finite(self.lane_loss),
            operators=self.operators,
            rows=self.rows,
        )


def _weights(log: CommitLog) -> dict[int, str]:
    """Return the weights digests of all commits, including retired ones; successors replace distrusted ones."""
    return {entry.step: entry.weights_digest for entry in log.entries() if isinstance(entry, Commit)}


def compared_number(step: int, name: str, recorded: float, replayed: float) -> Compared:
    """Compare a recorded number with the replayed one. NaN equals NaN."""
    is_equal = recorded == replayed or (math.isnan(recorded) and math.isnan(replayed))
    then, now = _exact_text(name, recorded), _exact_text(name, replayed)
    return Compared(step=step, quantity=name, recorded=then, replayed=now, is_equal=is_equal)


def _exact_text(name: str, value: float) -> str:
    if name.endswith("digest"):
        return f"{int(value):013x}"
    return str(int(value)) if name in ("rows", "tokens") else repr(float(value))
