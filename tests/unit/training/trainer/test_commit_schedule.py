"""When a commit is due: by steps for all ranks alike, by rank 0's clock where the recipe says `auto`."""

from collections.abc import Iterable

import pytest

from assay.base.commit_interval import optimal_commit_interval_s
from assay.training.trainer.config import TrainerConfig
from assay.training.trainer.trainer import ASSUMED_COMMIT_S, CommitSchedule

FAILURE_S = 1000.0


class ManualClock:
    """Stands still until it is moved."""

    seconds = 50.0

    def monotonic_s(self) -> float:
        return self.seconds


def schedule(clock: ManualClock | None = None, **config: object) -> CommitSchedule:
    trainer = TrainerConfig.model_validate(config)
    return CommitSchedule(trainer, clock or ManualClock(), failure_s=FAILURE_S)  # type: ignore[arg-type]


def due_steps(steps: Iterable[int] = range(1, 13), **config: object) -> list[int]:
    due = schedule(**config)
    return [step for step in steps if due.is_due(step, last_step=11)]


@pytest.mark.parametrize(
    ("config", "due"),
    [
        ({"commit_every": 3}, [3, 6, 9, 11, 12]),
        ({"commit_every": 3, "evaluate_every": 4}, [3, 4, 6, 8, 9, 11, 12]),
        ({"commit_every": 100}, [11]),
        ({"commit_every": 1}, list(range(1, 13))),
        ({"commit_every": "auto"}, [11]),
        ({"commit_every": "auto", "evaluate_every": 5}, [5, 10, 11]),
    ],
)
def test_a_commit_is_due_every_so_many_steps_with_every_evaluation_and_at_the_end(config, due) -> None:
    assert due_steps(**config) == due


def test_auto_asks_when_the_best_interval_for_a_cheap_commit_has_passed_and_not_before() -> None:
    clock = ManualClock()
    auto, start = schedule(clock, commit_every="auto"), clock.seconds
    interval = optimal_commit_interval_s(ASSUMED_COMMIT_S, FAILURE_S)
    assert 5 < interval < 20
    requested = []
    for seconds in (0.0, interval - 0.01, interval, interval + 5):
        clock.seconds = start + seconds
        requested.append(auto.is_requested())
    assert requested == [False, False, True, True]


def test_auto_waits_longer_once_it_knows_that_commits_are_dear() -> None:
    clock = ManualClock()
    auto = schedule(clock, commit_every="auto")
    clock.seconds += 100.0
    auto.committed(4.0)
    interval = optimal_commit_interval_s(4.0, FAILURE_S)
    assert interval > 3 * optimal_commit_interval_s(ASSUMED_COMMIT_S, FAILURE_S)
    requested = []
    for seconds in (0.0, interval - 0.01, interval):
        clock.seconds = 150.0 + seconds
        requested.append(auto.is_requested())
    assert requested == [False, False, True]


def test_the_clock_asks_for_nothing_where_steps_decide() -> None:
    clock = ManualClock()
    all_steps = schedule(clock, commit_every=5)
    clock.seconds += 1e6
    assert not all_steps.is_requested()
