"""How the history of a resumed training is compared with the undisturbed one, on histories of a few numbers."""

from dataclasses import dataclass, replace

import pytest

from assay.checks.resume.observed import ObservedStep, ObservedTraining, SavedFiles, TrainingState
from assay.checks.resume.properties import Baseline, compare_training, first_history

STEPS = 8


@dataclass(frozen=True)
class Step:
    """What a test changes in a step."""

    rows: tuple[str, ...]
    number: int
    loss: float
    rate: float = 0.1
    generator: str = "equal"
    shift: float = 0.0

    def observed(self) -> ObservedStep:
        return ObservedStep(self.rows, self.loss, (self.rate,), self.generator, state(self.number, self.shift), 0.0)


def state(number: int, shift: float = 0.0) -> TrainingState:
    value = number + shift
    return TrainingState(f"w{value}", f"o{number}", (value, -value))


def steps(first: int, last: int) -> list[Step]:
    return [Step((f"{n}a", f"{n}b"), n, 1 / n) for n in range(first, last + 1)]


def training(
    *new_steps: Step, begin: int = 0, saves: tuple[SavedFiles, ...] = (), world_size: int = 1
) -> ObservedTraining:
    return ObservedTraining(state(begin), tuple(step.observed() for step in new_steps), saves, world_size)


UNDISTURBED = training(*steps(1, STEPS))


def failing_of(resumed: ObservedTraining, *, killed: ObservedTraining | None = None) -> dict[str, str]:
    earlier = first_history(killed or training(*steps(1, 5)))
    start, distance = earlier.restored(resumed, initial_distance=0.0)
    results = compare_training(Baseline(UNDISTURBED, UNDISTURBED), earlier, resumed, start, distance)
    return {name: result.status for name, result in results.items() if result.status not in ("holds", "follows")}


def test_an_exact_resume_holds_whichever_step_it_goes_on_from() -> None:
    for start in range(6):
        assert failing_of(training(*steps(start + 1, STEPS), begin=start)) == {}


def test_the_step_of_a_resume_follows_from_its_weights() -> None:
    earlier = first_history(training(*steps(1, 5)))
    assert earlier.restored(training(*steps(4, 8), begin=3), initial_distance=0.0) == (3, 0.0)
    near = replace(steps(4, 4)[0])
    moved = training(near, begin=3)._replace(before=state(3, 0.01))
    start, distance = earlier.restored(moved, initial_distance=0.0)
    assert start == 3 and distance == pytest.approx(0.01 / 5)


def test_without_seeds_a_resume_from_no_checkpoint_has_the_weights_of_no_step() -> None:
    earlier = first_history(training(*steps(1, 5)))
    again = training(*steps(1, 5))._replace(before=state(0, 0.9))
    initial_distance = Baseline(UNDISTURBED, again).initial_distance
    assert initial_distance == pytest.approx(0.9 * 2**0.5)
    anew = training(*steps(1, 8))._replace(before=state(3, 0.4))
    assert earlier.restored(anew, initial_distance) == (0, 0.0)
    near = training(*steps(4, 8))._replace(before=state(3, 0.01))
    assert earlier.restored(near, initial_distance)[0] == 3


def test_first_weights_that_differ_by_round_off_are_not_taken_for_missing_seeds() -> None:
    earlier = first_history(training(*steps(1, 5)))
    again = training(*steps(1, 5))._replace(before=state(0, 1e-5))
    coarse = training(*steps(4, 8))._replace(before=state(3, 0.01))
    start, distance = earlier.restored(coarse, Baseline(UNDISTURBED, again).initial_distance)
    assert start == 3 and distance == pytest.approx(0.01 / 5)


@pytest.mark.parametrize(
    ("resumed", "status"),
    [
        (training(*steps(5, 8), begin=3), {"rows": "fails"}),
        (training(*steps(3, 8), begin=3), {"rows": "fails"}),
        (training(*steps(4, 7), begin=3), {"rows": "fails"}),
        (training(*(replace(step, rate=0.2) for step in steps(4, 8)), begin=3), {"learning_rate": "fails"}),
        (training(*(replace(step, shift=1e-6) for step in steps(4, 8)), begin=3), {"weights": "round-off"}),
        (training(*(replace(step, shift=0.5) for step in steps(4, 8)), begin=3), {"weights": "fails"}),
        (training(*(replace(step, loss=step.loss + 0.1) for step in steps(4, 8)), begin=3), {"loss": "fails"}),
        (
            training(*(replace(step, loss=step.loss + 0.1, generator="other") for step in steps(4, 8)), begin=3),
            {"randomness": "fails"},
        ),
        (training(*(replace(step, generator="other") for step in steps(4, 8)), begin=3), {}),
        (training(*steps(4, 8), begin=3)._replace(before=state(3)._replace(optimizer="o0")), {"optimizer": "fails"}),
        (
            training(*(replace(step, rows=step.rows[::-1]) for step in steps(4, 8)), begin=3),
            {},
        ),
        (
            training(*(replace(a, rows=b.rows) for a, b in zip(steps(4, 8), steps(4, 8)[::-1], strict=True)), begin=3),
            {"order": "fails"},
        ),
    ],
)
def test_a_difference_is_one_failure_and_no_other(resumed: ObservedTraining, status: dict[str, str]) -> None:
    assert failing_of(resumed) == status


def test_a_batch_that_was_saved_before_its_step_is_told_from_a_lost_one() -> None:
    saved = SavedFiles(3, (("step-4", 1, 1),), 1, ("4a", "4b"))
    killed = training(*steps(1, 5), saves=(saved,))
    assert failing_of(training(*steps(5, 8), begin=3), killed=killed) == {"moment": "fails"}


def test_smaller_steps_of_another_world_size_keep_the_order_of_global_batches() -> None:
    halves = [replace(step, rows=(row,), number=step.number) for step in steps(4, 8) for row in step.rows]
    assert "order" not in failing_of(training(*halves, begin=3, world_size=2))
    swapped = [halves[index] for index in (2, 3, 0, 1, *range(4, 10))]
    assert failing_of(training(*swapped, begin=3, world_size=2))["order"] == "fails"


def test_what_differs_between_undisturbed_runs_is_not_required() -> None:
    other = training(*(replace(step, loss=2 * step.loss, rows=(*step.rows[::-1], "c")) for step in steps(1, STEPS)))
    unseen = Baseline(UNDISTURBED, other).unseen
    assert set(unseen) == {"rows", "order", "randomness", "loss", "weights"}
