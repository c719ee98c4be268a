"""Runs a step of a past run again on one process, and says whether its numbers come out as recorded, and why
not.

    nearest commit before N --replay--> step N --compare--> what rank 0 wrote down, bit for bit
                                          |
                                          +-- watch / audit operators, search rows, explain

Compared are: loss, gradient norm and learning rate of every replayed step; the digest of the gradient where a
spot check recorded one; the digest of the weights where a commit did. All are exact numbers: equal means
equal bits.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from assay.base.code_version import code_version
from assay.base.errors import ConfigError
from assay.data.dataset.dataset import Dataset
from assay.data.dataset.split import split_view
from assay.data.loader.batch import StepShare
from assay.data.loader.loader import Loader
from assay.launch.capsules import nearest_commit
from assay.records.commit import Commit
from assay.records.replay import Compared, OperatorWatchReport, ReplayReport, RowFinding, RowSearch
from assay.records.run import Run
from assay.store.commit_log import CommitLog
from assay.store.metrics.recorded import RecordedStep, recorded_steps
from assay.training.methods.registry import method_of
from assay.training.recipe import Recipe, recipe_of
from assay.training.replay.audit import OutsideBound
from assay.training.replay.bad_rows import RowSearcher, SuspectRows
from assay.training.replay.replayer import Replayer
from assay.training.replay.watch import NotFinite, OperatorWatch
from assay.training.trainer.numerics import digest_of_tensors
from assay.training.trainer.step import StepTotals
from assay.training.trainer.trainer import num_steps

NUM_EARLIER_STEPS = 32
"""Whose rows a step's rows are held against."""

Mode = Literal["watch", "audit-ops"]


@dataclass(frozen=True)
class ReplayRequest:
    """What to run again, and what to look at."""

    step: int
    through_step: int | None = None
    """Go on to this step, e.g. one whose weights are on record; None stops at `step`."""
    attempt: int | None = None
    """Compare with this attempt's record; None with the one that counts."""
    lane: int | None = None
    """Of `step`, only this lane."""
    mode: Mode | None = None
    """Look at every operator of `step`."""
    search_rows: bool = False
    """Look for the rows that make `step` bad."""


class _Recorded(NamedTuple):
    """What the run left behind."""

    steps: dict[int, RecordedStep]
    weights: dict[int, str]
    """Digests, by step of the commit."""


@dataclass
class _Found:
    """What a replay gathers."""

    compared: list[Compared] = field(default_factory=list)
    totals: StepTotals | None = None
    lane_loss: float | None = None
    operators: OperatorWatchReport | None = None
    rows: RowSearch | None = None


Progress = Callable[[int, int, int], None]
"""Called with the step that is made next, the first and the last one."""


def replay(
    run: Run, log: CommitLog, request: ReplayRequest, *, progress: Progress = lambda *_: None
) -> ReplayReport:
    """Make the steps from the nearest commit to the one asked for, and compare."""
    recipe = recipe_of(run)
    dataset = Dataset.open(Path(recipe.data.dataset))
    method = method_of(recipe.method)
    loader = Loader(split_view(dataset, recipe.data.split, "train"), recipe.loader, recipe.method.columns)
    through = request.step if request.through_step is None else request.through_step
    _check(request, recipe, through, num_steps(recipe.trainer, loader))
    recorded = _Recorded(recorded_steps(Path(run.run_dir), attempt=request.attempt), _weights(log))
    _check_attempt(request, recorded)
    commit = nearest_commit(log, request.step)
    with Replayer.opened(method, loader, log, recipe.trainer, seed=recipe.seed) as replayer:
        found = _Replay(replayer, dataset, recorded, request).run(commit, through, progress)
    return _report(run, request, through, commit, recorded, found)


class _Replay:
    """One replay under way."""

    def __init__(
        self, replayer: Replayer, dataset: Dataset, recorded: _Recorded, request: ReplayRequest
    ) -> None:
        self._replayer = replayer
        self._dataset = dataset
        self._recorded = recorded
        self._request = request
        self._found = _Found()

    def run(self, commit: Commit | None, through: int, progress: Progress) -> _Found:
        if commit is not None:
            self._replayer.restore(commit)
        first = self._replayer.step + 1
        for share in self._replayer.shares(first, through):
            step = self._replayer.step + 1
            progress(step, first, through)
            if step == self._request.step:
                self._before_the_step(share)
                totals = self._watched(share) if self._request.mode else self._replayer.make(share)
                self._found.totals = totals
            else:
                totals = self._replayer.make(share)
            if totals is None or not totals.is_made:
                break
            self._found.compared += self._comparisons(step, totals)
        return self._found

    def _before_the_step(self, share: StepShare) -> None:
        """With the weights that the step begins with."""
        if self._request.search_rows:
            self._found.rows = self._searched(share)
        if self._request.lane is not None:
            self._make_lane(share, self._request.lane)

    def _make_lane(self, share: StepShare, lane_number: int) -> None:
        lane = share.lanes[lane_number]
        made = self._replayer.lane_recomputer.of(lane, step=self._request.step)
        self._found.lane_loss = made.loss_sum / max(1, self._replayer.forward.weight(lane))
        recorded = self._recorded.steps.get(self._request.step)
        if recorded is not None and lane_number in recorded.lane_digests:
            digest = float(digest_of_tensors(made.gradients))
            name = f"lane {lane_number} gradient_digest"
            self._found.compared.append(
                _compared(self._request.step, name, recorded.lane_digests[lane_number], digest)
            )

    def _watched(self, share: StepShare) -> StepTotals | None:
        """The step under a watch; None where it raised an error."""
        mode = self._request.mode
        assert mode is not None
        inspector = NotFinite() if mode == "watch" else OutsideBound()
        replayer, raised, totals = self._replayer, "", None

        def where() -> tuple[int | None, object]:
            lane = replayer.lane_of_micro_batch(share)
            return (lane.lane if lane else None), replayer.forward.micro_batch

        watch = OperatorWatch(replayer.model, inspector, where)  # type: ignore[arg-type]
        with watch:
            try:
                totals = replayer.make(share)
            except (RuntimeError, IndexError, ValueError) as error:
                raised = f"{type(error).__name__}: {str(error).splitlines()[0]}"
        failed = totals is None or not totals.is_made
        self._found.operators = OperatorWatchReport(
            mode=mode,
            finding=watch.finding or (watch.carried if failed else None),
            num_calls=watch.num_calls,
            num_operators=len(watch.operators),
            not_audited=getattr(inspector, "not_audited", {}),
            raised=raised,
        )
        return totals

    def _searched(self, share: StepShare) -> RowSearch:
        search = RowSearcher(self._replayer, share)
        rows = search.not_finite()
        step = self._request.step
        if not rows.rows and math.isfinite(rows.step_loss) and step > 1:
            rows = search.too_high(list(self._replayer.shares(max(1, step - NUM_EARLIER_STEPS), step - 1)))
        return self._row_search(rows, sum(lane.num_rows for lane in share.lanes))

    def _row_search(self, rows: SuspectRows, num_rows: int) -> RowSearch:
        return RowSearch(
            criterion=rows.criterion,
            rows=tuple(
                RowFinding(
                    row_id=row.row_id,
                    place=self._dataset.row_place(row.row_id),
                    lane=row.lane,
                    loss=_finite(loss),
                )
                for row, loss in zip(rows.rows, rows.losses, strict=True)
            ),
            num_rows=num_rows,
            num_passes=rows.num_passes,
            step_loss=_finite(rows.step_loss),
            loss_without=_finite(rows.loss_without),
            earlier_loss=_finite(rows.earlier_loss),
        )

    def _comparisons(self, step: int, totals: StepTotals) -> Iterator[Compared]:
        made = {
            "loss": totals.loss,
            "gradient_norm": totals.gradient_norm,
            "learning_rate": totals.learning_rate,
            "rows": totals.num_rows,
            "tokens": totals.num_tokens,
            **totals.digests,
        }
        recorded = self._recorded.steps.get(step)
        for name in ("rows", "tokens", "learning_rate", "loss", "gradient_norm", "gradient_digest"):
            if recorded is not None and name in recorded.values and name in made:
                yield _compared(step, name, recorded.values[name], made[name])
        if step in self._recorded.weights:
            digest = self._replayer.weights_digest()
            yield Compared(
                step=step,
                quantity="weights_digest",
                recorded=self._recorded.weights[step],
                replayed=digest,
                is_equal=digest == self._recorded.weights[step],
            )


def _check(request: ReplayRequest, recipe: Recipe, through: int, last_step: int) -> None:
    num_lanes = recipe.loader.lanes
    if recipe.trainer.gradient_sum != "tree":
        raise ConfigError(
            f"the run added its gradients by {recipe.trainer.gradient_sum}, whose bits depend on the world "
            "size, so no step of it can be made again exactly. Train with trainer.gradient_sum=tree."
        )
    if not 1 <= request.step <= last_step:
        raise ConfigError(f"--step {request.step}: the run has the steps 1 to {last_step}.")
    if not request.step <= through <= last_step:
        raise ConfigError(
            f"--through {through}: it goes on from --step {request.step}, so it is one of {request.step} to "
            f"{last_step}, the run's last step."
        )
    if request.lane is not None and not 0 <= request.lane < num_lanes:
        raise ConfigError(f"--lane {request.lane}: the run has the lanes 0 to {num_lanes - 1}.")


def _check_attempt(request: ReplayRequest, recorded: _Recorded) -> None:
    """Refuse an attempt that never came to the step: another's record would be compared without a word."""
    if request.attempt is None:
        return
    own = [step for step, made in recorded.steps.items() if made.attempt == request.attempt]
    if own and min(own) <= request.step <= max(own) + 1:  # the one behind its last is the step that it died in
        return
    made = f"it made the steps {min(own)} to {max(own)}" if own else "it has no step on record"
    raise ConfigError(
        f"--attempt {request.attempt} --step {request.step}: {made}. 'assay show' lists the attempts; without "
        "--attempt the one that counts is taken."
    )


def _weights(log: CommitLog) -> dict[int, str]:
    """Of all commits that ever were, retired ones too; those that were distrusted give way to their
    successors."""
    return {entry.step: entry.weights_digest for entry in log.entries() if isinstance(entry, Commit)}


def _compared(step: int, name: str, recorded: float, replayed: float) -> Compared:
    """NaN is equal to NaN here: it came out again."""
    is_equal = recorded == replayed or (math.isnan(recorded) and math.isnan(replayed))
    then, now = _exact_text(name, recorded), _exact_text(name, replayed)
    return Compared(step=step, quantity=name, recorded=then, replayed=now, is_equal=is_equal)


def _exact_text(name: str, value: float) -> str:
    if name.endswith("digest"):
        return f"{int(value):013x}"
    return str(int(value)) if name in ("rows", "tokens") else repr(float(value))


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _report(
    run: Run,
    request: ReplayRequest,
    through: int,
    commit: Commit | None,
    recorded: _Recorded,
    found: _Found,
) -> ReplayReport:
    differences = [each for each in found.compared if not each.is_equal]
    at_step = [each for each in found.compared if each.step >= request.step]
    return ReplayReport(
        run_id=run.run_id,
        step=request.step,
        through_step=through,
        from_step=commit.step if commit else 0,
        attempt=recorded.steps[request.step].attempt if request.step in recorded.steps else 0,
        recorded_code_version=run.code_version,
        code_version=code_version(),
        verdict="differs" if differences else "equal" if at_step else "not recorded",
        compared=len(found.compared),
        at_step=tuple(at_step),
        first_difference=differences[0] if differences else None,
        loss=_finite(found.totals.loss) if found.totals else None,
        gradient_norm=_finite(found.totals.gradient_norm) if found.totals else None,
        lane_loss=_finite(found.lane_loss),
        operators=found.operators,
        rows=found.rows,
    )
