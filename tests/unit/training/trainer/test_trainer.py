"""The loop around the step: what is committed when, with which place and receipts, and what is written down.

The step and the saver are stand-ins that note what they are asked; the loader and its order are real.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from assay.base.errors import TrainingError
from assay.base.seeds import mix64
from assay.data.loader.batch import StepShare
from assay.data.loader.config import LoaderConfig
from assay.data.loader.loader import Loader
from assay.data.loader.receipts import receipt
from assay.records.commit import Quarantined
from assay.records.cursor import Cursor
from assay.records.rollout_log import GroupRecord
from assay.training.samples import StepCancelledError
from assay.training.trainer.config import TrainerConfig
from assay.training.trainer.step import StartedStep, StepTotals
from assay.training.trainer.trainer import Trainer, TrainingPosition
from noisy_regression import completion_of

LANES = range(2, 4)
"""Of a rank that has the second half of four."""
STEPS_PER_EPOCH = 5


class Source:
    """Forty rows in four groups; the last is damaged if asked for."""

    fingerprint = "f" * 64
    num_rows = np.array([10] * 4, np.int64)
    identities = mix64(np.arange(4, dtype=np.uint64))

    def row_ids(self, group: int) -> Any:
        return np.arange(group * 10, group * 10 + 10, dtype=np.uint64)

    def read(self, group: int, columns: Sequence[str]) -> pa.Table:
        return pa.table({"input_ids": pa.array([[1, 2]] * 10, pa.list_(pa.int32()))})

    def shard_of(self, group: int) -> str:
        return "shard"


@dataclass
class Rank:
    """Everything around the trainer, and what it was asked."""

    completions: dict[int, dict[str, Any]] = field(default_factory=dict)
    """What steps report other than usual."""
    stops: bool = False
    events: list[Any] = field(default_factory=list)
    requested: list[tuple[int, bool, bool]] = field(default_factory=list)
    shares: list[StepShare] = field(default_factory=list)
    commits: list[dict[str, Any]] = field(default_factory=list)
    logged: dict[int, dict[str, float]] = field(default_factory=dict)
    read_behind: dict[int, int] = field(default_factory=dict)
    """Steps that had been started after a step when its totals were read."""
    seconds: float = 100.0
    runs_ahead: bool = False
    """Steps still run when they are started, as on a GPU."""

    def monotonic_s(self) -> float:
        return self.seconds

    def step(self, share: StepShare, *, step: int, stop_requested: bool, commit_requested: bool) -> StepTotals:
        self.seconds += 0.25
        self.requested.append((step, stop_requested, commit_requested))
        self.shares.append(share)
        usual = StepTotals(
            num_rows=8, num_tokens=16, weight=4, loss_sum=step * 2.0, gradient_norm=3.0, learning_rate=0.5,
            stop_requested=False, commit_requested=commit_requested, exchange_s=0.125, bad_lanes=(),
            metrics={"accuracy": 0.75}, digests={"gradient_digest": 7.0},
        )  # fmt: skip
        return usual._replace(**self.completions.get(step, {}))

    def start(self, share: StepShare, *, step: int, stop_requested: bool, commit_requested: bool) -> StartedStep:
        totals = self.step(share, step=step, stop_requested=stop_requested, commit_requested=commit_requested)

        def read() -> StepTotals:
            self.read_behind[step] = self.requested[-1][0] - step
            return totals

        return StartedStep(read, self.runs_ahead)

    def phase(self, name: str) -> None:
        self.events.append(name)

    def log(self, step: int, values: Any) -> None:
        self.logged[step] = dict(values)

    def sync(self) -> None:
        self.events.append("sync")

    def begin(self, **commit: Any) -> None:
        self.seconds += 2.0
        self.events.append(f"commit {commit['step']}")
        self.commits.append(commit)

    def wait(self) -> None:
        self.events.append("wait")

    def raise_failed(self) -> None:
        """No commit fails."""

    def evaluate(self, step: int) -> float:
        self.events.append(f"evaluate {step}")
        return step / 10


LOST = Quarantined(row_group=3, shard="shard", num_rows=10, reason="digest")
SIZES: dict[str, Any] = {"lanes": 4, "global_batch_size": 8, "window_rows": 4, "threads": 1}


class Reader(Loader):
    """Notes what it is asked for."""

    def __init__(self, *rest: Any) -> None:
        super().__init__(*rest)
        self.requested: list[tuple[Any, ...]] = []

    def shares(self, *requests: Any) -> Any:
        self.requested.append(requests)
        return super().shares(*requests)


def loader(**config: Any) -> Reader:
    return Reader(Source(), LoaderConfig(**SIZES, **config), ("input_ids",))


class Damaged(Loader):
    """Says with every lane that a row group was lost."""

    def shares(self, *requests: Any) -> Any:
        for share in super().shares(*requests):
            yield replace(share, lanes=tuple(replace(lane, quarantined=(LOST,)) for lane in share.lanes))


def trained(
    rank: Rank,
    index: TrainingPosition | None = None,
    *,
    reader: Loader | None = None,
    staleness: int | None = None,
    **config: Any,
) -> str:
    trainer_config = TrainerConfig.model_validate({"epochs": 2, "commit_every": 4} | config)
    context: Any = SimpleNamespace(
        loader=reader or loader(),
        config=trainer_config,
        clock=rank,
        is_stopping=lambda: rank.stops,
        num_steps=trainer_config.num_steps(STEPS_PER_EPOCH),
    )
    trainer = Trainer(
        context, rank, rank, rank, lanes=LANES, failure_s=1e9, evaluate=rank.evaluate,
        **({} if staleness is None else {"lookahead": staleness}),
    )  # type: ignore[arg-type]  # fmt: skip
    return trainer.train(index or TrainingPosition(0, Cursor()))


def positions(rank: Rank) -> list[tuple[int, int, int]]:
    """(step, epoch, step of the epoch) of each commit."""
    return [(commit["step"], commit["cursor"].epoch, commit["cursor"].step_in_epoch) for commit in rank.commits]


@pytest.mark.parametrize("runs_ahead", [False, True])
def test_a_run_reads_every_step_once_and_commits_the_place_of_the_next(runs_ahead: bool) -> None:
    rank = Rank(runs_ahead=runs_ahead)
    assert trained(rank) == "finished"
    assert rank.requested == [(step, False, False) for step in range(1, 11)]
    cursors = [(share.cursor.epoch, share.cursor.step_in_epoch) for share in rank.shares]
    assert cursors == [(epoch, step) for epoch in range(2) for step in range(STEPS_PER_EPOCH)]
    assert all([lane.lane for lane in share.lanes] == list(LANES) for share in rank.shares)
    assert positions(rank) == [(4, 0, 4), (8, 1, 3), (10, 2, 0)]
    assert [commit["from_step"] for commit in rank.commits] == [0, 4, 8]
    assert rank.events[-2:] == ["checkpoint", "wait"]
    assert sorted(rank.logged) == list(range(1, 11))


def test_a_running_step_is_read_behind_the_next_start_and_at_once_before_a_commit() -> None:
    rank = Rank(runs_ahead=True)
    trained(rank)
    behind = {step: int(step not in (4, 8, 10)) for step in range(1, 11)}
    assert rank.read_behind == behind
    assert {step: values["step_s"] for step, values in rank.logged.items()} == {
        # Started with nothing before it, a step is read when the next one has taken its quarter of a second, too.
        step: {1: 0.5, 5: 0.5, 9: 0.5, 4: 0.0, 8: 0.0, 10: 0.0}.get(step, 0.25)
        for step in behind
    }


def test_a_running_step_is_read_at_once_if_a_stop_or_a_commit_is_requested() -> None:
    stopping = Rank(runs_ahead=True, stops=True, completions={1: {"stop_requested": True}})
    assert trained(stopping) == "stopped"
    assert stopping.read_behind == {1: 0} and positions(stopping) == [(1, 0, 1)]


@pytest.mark.parametrize("runs_ahead", [False, True])
def test_receipts_are_of_the_rows_that_were_learned_since_the_last_commit(runs_ahead: bool) -> None:
    rank = Rank(runs_ahead=runs_ahead)
    trained(rank)
    for commit in rank.commits:
        expected = []
        for step in range(commit["from_step"] + 1, commit["step"] + 1):
            for lane in rank.shares[step - 1].lanes:
                rows = np.concatenate([batch.row_ids for batch in lane.micro_batches])
                expected.append((step, lane.lane, *receipt(rows)))
        found = commit["receipts"]
        assert found.rows == expected
        assert found.quarantined == [] and commit["metric"] is None and not commit["is_verified"]


def test_the_receipt_of_a_lane_is_that_of_its_rows_however_they_are_cut() -> None:
    whole, cut = Rank(), Rank()
    trained(whole)
    trained(cut, reader=loader(max_micro_batch_tokens=2))
    assert {len(lane.micro_batches) for share in cut.shares for lane in share.lanes} == {2}
    assert [commit["receipts"].rows for commit in cut.commits] == [commit["receipts"].rows for commit in whole.commits]


def test_a_resume_goes_on_where_the_commit_says() -> None:
    whole, rest = Rank(), Rank()
    trained(whole)
    assert trained(rest, TrainingPosition(7, Cursor(epoch=1, step_in_epoch=2))) == "finished"
    assert [share.cursor for share in rest.shares] == [share.cursor for share in whole.shares[7:]]
    assert positions(rest) == [(8, 1, 3), (10, 2, 0)]
    assert [commit["from_step"] for commit in rest.commits] == [7, 8]


@pytest.mark.parametrize(("step_in_epoch", "skipped"), [(4, None), (5, {3, 7}), (8, None)])
def test_a_window_is_gone_on_with_as_it_was_dealt(step_in_epoch: int, skipped: set[int] | None) -> None:
    """What was quarantined by then stays out of its steps; between windows the next one decides anew."""
    lost = [SimpleNamespace(row_group=row_group) for row_group in (7, 3)]
    cursor = Cursor(epoch=1, step_in_epoch=step_in_epoch)
    commit: Any = SimpleNamespace(step=9, cursor=cursor, quarantined=lost)
    loader: Any = SimpleNamespace(geometry=SimpleNamespace(window_steps=4))
    assert TrainingPosition.after(commit, loader) == (9, cursor, skipped)


def test_no_more_is_read_than_is_learned() -> None:
    reader, index = loader(), TrainingPosition(7, Cursor(epoch=1, step_in_epoch=2), frozenset({3}))
    trained(Rank(), index, reader=reader)
    assert reader.requested == [(index.cursor, LANES, 3, index.skipped)]


@pytest.mark.parametrize("staleness", [None, 0, 2])
def test_a_step_is_given_the_prompts_of_those_that_it_answers_ahead(staleness: int | None) -> None:
    rank = Rank()
    trained(rank, staleness=staleness, max_steps=5)
    lanes = [share.lanes for share in rank.shares]
    for step, share in enumerate(rank.shares):
        assert share.upcoming == tuple(lanes[step + 1 : step + 1 + (staleness or 0)])


def test_a_commit_has_the_journal_of_its_steps_and_what_was_quarantined() -> None:
    group = GroupRecord(1, 2, 9, "trained", "[]", (completion_of(7),))
    rank = Rank(completions={step: {"log": (group._replace(step=step),)} for step in (1, 2, 3, 5)})
    trained(rank, reader=Damaged(Source(), LoaderConfig(**SIZES), ("input_ids",)), max_steps=6)
    steps = [[table["step"].to_pylist() for table in commit["receipts"].rollout_log] for commit in rank.commits]
    assert steps == [[[1], [2], [3]], [[5]]]
    assert [commit["receipts"].quarantined for commit in rank.commits] == [[LOST] * 4 * 2, [LOST] * 2 * 2]


def test_nothing_is_left_to_do_after_the_last_step() -> None:
    rank = Rank()
    assert trained(rank, TrainingPosition(10, Cursor(epoch=2))) == "finished"
    assert rank.events == ["checkpoint", "wait"] and not rank.commits


def test_each_phase_of_a_step_is_entered_in_its_order() -> None:
    rank = Rank()
    trained(rank, max_steps=2, evaluate_every=2)
    assert rank.events == [
        "data", "data",
        "evaluation", "evaluate 2", "checkpoint", "sync", "commit 2",
        "checkpoint", "wait",
    ]  # fmt: skip
    assert rank.commits[0]["metric"] == 0.2


def test_a_step_is_written_down_with_the_seconds_that_it_took() -> None:
    rank = Rank()
    trained(rank, max_steps=2)
    assert rank.logged == {
        step: {
            "loss": step / 2, "gradient_norm": 3.0, "learning_rate": 0.5, "rows": 8, "tokens": 16, "weight": 4,
            "step_s": 0.25, "exchange_s": 0.125, "accuracy": 0.75, "gradient_digest": 7.0,
        }
        for step in (1, 2)
    }  # fmt: skip


@pytest.mark.parametrize(("stop_step", "outcome"), [(3, "stopped"), (4, "stopped"), (10, "finished")])
def test_who_is_asked_to_stop_commits_first(stop_step: int, outcome: str) -> None:
    rank = Rank(completions={stop_step: {"stop_requested": True}})
    assert trained(rank) == outcome
    assert len(rank.requested) == stop_step
    assert positions(rank)[-1][0] == stop_step
    assert rank.events[-1] == "wait"
    assert len({commit["step"] for commit in rank.commits}) == len(rank.commits)


def test_the_wish_to_stop_is_handed_to_the_step() -> None:
    rank = Rank(stops=True)
    trained(rank, max_steps=1)
    assert rank.requested == [(1, True, False)]


def test_auto_asks_by_the_clock_and_waits_longer_after_a_dear_commit() -> None:
    # 0.05 s a commit and 1e9 s between failures: 10,000 s until the first; then one took 2 s: 63,000 s.
    rank = Rank()
    step = rank.step

    def long_step(*args: Any, **named: Any) -> StepTotals:
        rank.seconds += 12_000.0
        return step(*args, **named)

    rank.step = long_step  # type: ignore[method-assign]
    trained(rank, commit_every="auto")
    assert [number for number, _, commit in rank.requested if commit] == [2, 9]
    assert [number for number, *_ in positions(rank)] == [2, 9, 10]


@pytest.mark.parametrize(("commit_every", "committed"), [("auto", [3, 10]), (4, [4, 8, 10])])
def test_a_checked_step_is_committed_at_once_only_where_commits_have_no_fixed_steps(commit_every, committed) -> None:
    checked = [3] if commit_every == "auto" else [3, 8]
    rank = Rank(completions={step: {"is_verified": True} for step in checked})
    trained(rank, commit_every=commit_every)
    assert [commit["step"] for commit in rank.commits] == committed
    verified = [commit["step"] for commit in rank.commits if commit["is_verified"]]
    assert verified == ([3] if commit_every == "auto" else [8])


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        ({"bad_lanes": (1, 3)}, r"the loss of lanes \[1, 3\]"),
        ({"gradient_norm": math.nan}, "the gradient's norm"),
    ],
)
@pytest.mark.parametrize(("runs_ahead", "step"), [(False, 7), (True, 6), (True, 7), (True, 8)])
def test_a_step_that_was_not_made_ends_the_run_and_names_its_learning_rate(wrong, what, runs_ahead, step) -> None:
    rank = Rank(completions={step: wrong}, runs_ahead=runs_ahead)
    with pytest.raises(TrainingError, match=rf"^step {step}: {what} is not finite, at a learning rate of 0\.5 "):
        trained(rank)
    assert positions(rank) == [(4, 0, 4)] and step not in rank.logged
    assert rank.requested[-1][0] == step + (runs_ahead and step != 8), "one step later, unless a commit follows"


@pytest.mark.parametrize(("max_steps", "expected"), [(None, 10), (3, 3), (99, 10)])
def test_a_run_has_the_steps_of_its_epochs_or_as_many_as_allowed(max_steps, expected) -> None:
    config = TrainerConfig(epochs=2, max_steps=max_steps)
    assert config.num_steps(loader().steps_per_epoch) == expected


class Abandons(Rank):
    """Asked to stop while the model says what step `amid` is to learn from."""

    def __init__(self, amid: int) -> None:
        super().__init__()
        self.amid = amid

    def step(self, share: StepShare, *, step: int, stop_requested: bool, commit_requested: bool) -> StepTotals:
        if step == self.amid:
            raise StepCancelledError
        return super().step(share, step=step, stop_requested=stop_requested, commit_requested=commit_requested)


@pytest.mark.parametrize(
    ("amid", "commits"), [(1, []), (4, [(3, 0, 3)]), (5, [(4, 0, 4)]), (7, [(4, 0, 4), (6, 1, 1)])]
)
def test_an_abandoned_step_leaves_nothing_and_what_was_made_before_is_committed(
    amid: int, commits: list[tuple[int, int, int]]
) -> None:
    rank = Abandons(amid)
    assert trained(rank) == "stopped"
    assert positions(rank) == commits and sorted(rank.logged) == list(range(1, amid))
    assert rank.events[-1] == "wait"
    for commit in rank.commits:
        consumed = {row[0] for row in commit["receipts"].rows}
        assert consumed == set(range(commit["from_step"] + 1, commit["step"] + 1)) and not commit["is_verified"]
