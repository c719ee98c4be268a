"""The properties of a resume, in the order of cause and effect, and how a trained history is compared with another."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from math import dist, isclose
from typing import Literal, NamedTuple

from assay.base.units import count_text, number_of
from assay.checks.resume.observed import ObservedStep, ObservedTraining, TrainingState

PROPERTIES = {
    "resumes": "goes on from a checkpoint, not from nothing",
    "newest": "takes the newest whole checkpoint",
    "torn": "passes over a torn checkpoint",
    "kept": "a whole checkpoint stays on disk",
    "moment": "a checkpoint is of one moment",
    "rows": "trains each row as often as undisturbed",
    "order": "keeps the order of the rows",
    "learning_rate": "continues the learning rate",
    "optimizer": "restores the optimizer's state",
    "randomness": "restores the random generators",
    "loss": "continues the loss curve",
    "weights": "ends with the same weights",
    "sigterm": "ends after SIGTERM",
    "exit_code": "exits with 0 only when finished",
    "processes": "leaves no process behind",
}
"""Name -> what holds. A failure explains those of the effects that follow it."""
CAUSES = ("moment", "rows", "order", "learning_rate", "optimizer", "randomness", "loss")
EFFECTS = ("order", "loss", "weights")
Status = Literal["fails", "follows", "round-off", "holds", "unseen", "untried"]
STATUSES: tuple[Status, ...] = ("fails", "follows", "round-off", "holds", "unseen", "untried")
"""From the worst. `follows`: it differs because another property fails."""
ROUND_OFF = 1e-3
"""Largest difference that is called round-off: of losses relative to the largest loss, of weights relative to how far
training moved them."""

FRESH = 0.1
"""Weights that a resume begins with are not restored, if they are farther than this from each step's, relative to how
far the first weights of two undisturbed runs are from each other. Restored ones are within round-off."""


class PropertyResult(NamedTuple):
    """Whether a property holds, with the figures."""

    status: Status
    text: str


Results = dict[str, PropertyResult]


def holds(text: str = "") -> PropertyResult:
    """Return that a property holds."""
    return PropertyResult("holds", text)


def fails(text: str) -> PropertyResult:
    """Return that a property does not hold."""
    return PropertyResult("fails", text)


def worst_result(results: Sequence[PropertyResult]) -> PropertyResult:
    """Return the worst of a property's results, the first of equals."""
    return min(results, key=lambda result: STATUSES.index(result.status))


class Baseline(NamedTuple):
    """Two undisturbed trainings by the same command: what differs between them cannot be required of a resume."""

    training: ObservedTraining
    again: ObservedTraining

    @property
    def steps(self) -> Sequence[ObservedStep]:
        """The steps of the first."""
        return self.training.steps

    @property
    def unseen(self) -> dict[str, str]:
        """The properties that cannot be judged, each with the reason."""
        found: dict[str, str] = {}
        if not any(step.rows for step in self.steps):
            found |= dict.fromkeys(
                ("rows", "order"), "the model's input could not be read; call assay.observe(rows=...)"
            )
        elif _counts(self.steps) != _counts(self.again.steps):
            why = "two undisturbed runs trained different rows; set the seeds, or call assay.observe(rows=...)"
            found |= dict.fromkeys(("rows", "order"), why)
        elif _order_difference(self.steps, self.again.steps) is not None:
            found["order"] = "two undisturbed runs had different orders; set the seeds"
        if (difference := _loss_difference(self.steps, self.again.steps)) > ROUND_OFF:
            why = f"the losses of two undisturbed runs differ by {difference:.1%}; set the seeds"
            found |= dict.fromkeys(("randomness", "loss", "weights"), why)
        return found

    @property
    def initial_distance(self) -> float:
        """How far the first weights of the two are from each other; 0 where seeds are set."""
        assert self.training.before is not None and self.again.before is not None
        return _distance(self.training.before, self.again.before)

    def row_facts(self) -> tuple[str, str]:
        """Return the number of different rows, and how often each was trained."""
        counts = _counts(self.steps)
        times = sorted(set(counts.values()))
        often = f"{times[0]} to {times[-1]} times" if len(times) > 1 else number_of(times[0], "time") if times else ""
        return (count_text(len(counts)), f"{often} each") if counts else ("—", "not seen")


class History(NamedTuple):
    """The steps that made the final weights: those before each restored checkpoint, and those after it."""

    steps: tuple[ObservedStep, ...]
    before: TrainingState
    """The state before the first step."""
    in_flight: Mapping[int, Sequence[str]]
    """Step -> rows whose gradients were computed, and not yet applied, when it was saved."""

    def state(self, step: int) -> TrainingState:
        """Return the state after a number of steps."""
        return self.steps[step - 1].after if step else self.before

    def restored(self, training: ObservedTraining, initial_distance: float) -> tuple[int, float]:
        """Return from which step a training goes on, and how far its weights are from that step's, relative to
        how far the training had moved them. `initial_distance`: between the first weights of two undisturbed runs; a
        training whose weights are about as far from each step's began from nothing."""
        assert training.before is not None
        states = [self.state(step) for step in range(len(self.steps) + 1)]
        equal = [step for step, state in enumerate(states) if state.weights == training.before.weights]
        if equal:
            return equal[-1], 0.0
        distances = [_distance(state, training.before) for state in states]
        nearest = distances.index(min(distances))
        moved = max(_distance(states[0], states[-1]), 1e-30)
        # Undisturbed runs whose first weights differ by round-off have seeds.
        if distances[nearest] > FRESH * initial_distance > ROUND_OFF * moved:
            return 0, 0.0
        return nearest, distances[nearest] / moved

    def continued(self, training: ObservedTraining, step: int) -> "History":
        """Return the history with a training that goes on after `step`."""
        saves = {step + save.step: save.rows_in_flight for save in training.saves}
        return self._replace(steps=(*self.steps[:step], *training.steps), in_flight={**self.in_flight, **saves})


def first_history(training: ObservedTraining) -> History:
    """Return the history of a training that began from nothing."""
    assert training.before is not None
    empty = History((), training.before, {})
    return empty.continued(training, 0)


def compare_training(
    baseline: Baseline, earlier: History, training: ObservedTraining, start: int, distance: float
) -> Results:
    """Judge what a training did that went on after step `start` of an earlier history."""
    history = earlier.continued(training, start)
    same_size = training.world_size == baseline.training.world_size
    results: Results = dict(_compare_rows(baseline, history, start))
    results["learning_rate"] = _compare_rates(baseline.steps, history.steps)
    assert training.before is not None
    if training.before.optimizer == earlier.state(start).optimizer:
        results["optimizer"] = holds(f"as after step {start}")
    elif same_size:
        results["optimizer"] = fails(f"its state is not the one after step {start}")
    else:
        results["optimizer"] = PropertyResult("unseen", "ranks hold other parts of it at another world size")
    if distance > ROUND_OFF:
        results["weights"] = fails(f"no step has the restored weights; step {start} is the nearest, {distance:.1%} off")
    if results["rows"].status == results["order"].status == "holds" and start < min(
        map(len, (baseline.steps, history.steps))
    ):
        results["randomness"] = _compare_generators(baseline.steps[start], history.steps[start])
    results.setdefault("loss", _compare_losses(baseline.steps, history.steps))
    results.setdefault("weights", _compare_weights(baseline, history))
    results |= {name: PropertyResult("unseen", why) for name, why in baseline.unseen.items()}
    return explained(results)


def explained(results: Results) -> Results:
    """Return the results with effects of a failure marked as such."""
    names = list(PROPERTIES)
    causes = [name for name in CAUSES if name in results and results[name].status == "fails"]
    found = dict(results)
    for name in EFFECTS:
        cause = next((cause for cause in causes if names.index(cause) < names.index(name)), None)
        if cause and name in found and found[name].status in ("fails", "round-off", "holds"):
            found[name] = PropertyResult("follows", f"not compared, because {cause} fails")
    return found


def _compare_rows(baseline: Baseline, history: History, start: int) -> Iterator[tuple[str, PropertyResult]]:
    expected, trained = _counts(baseline.steps), _counts(history.steps)
    missing, repeated = expected - trained, trained - expected
    in_flight = Counter(history.in_flight.get(start, ()))
    if in_flight and missing == in_flight and not repeated:
        yield (
            "moment",
            fails(
                f"step {start + 1} was saved as done before its weights changed; "
                f"its {number_of(len(in_flight), 'row')} are lost"
            ),
        )
        yield "rows", PropertyResult("follows", "not compared, because moment fails")
    elif missing or repeated:
        yield "rows", fails(_row_difference(baseline.steps, history.steps, missing, repeated, start))
    else:
        yield "moment", holds()
        yield "rows", holds(f"{count_text(trained.total())} rows in {count_text(len(history.steps))} steps")
    difference = _order_difference(baseline.steps, history.steps)
    yield "order", holds() if difference is None else fails(f"other rows from step {difference} on")


def _row_difference(
    expected: Sequence[ObservedStep],
    trained: Sequence[ObservedStep],
    missing: "Counter[str]",
    repeated: "Counter[str]",
    start: int,
) -> str:
    """Return how many rows are missing and repeated, and whose steps' they are: the nearest to the resume."""
    parts = []
    if missing:
        after = _steps_with(missing, list(enumerate(expected, 1))[start:])
        parts.append(f"{number_of(missing.total(), 'row')} not trained after the resume{after}")
    if repeated:
        before = _steps_with(repeated, list(enumerate(trained, 1))[:start][::-1])
        parts.append(f"{number_of(repeated.total(), 'row')} trained again{before}")
    return "; ".join(parts)


def _steps_with(rows: "Counter[str]", steps: Sequence[tuple[int, ObservedStep]]) -> str:
    """Return the steps, in the given order, that hold the rows."""
    left, found = +rows, []
    for number, step in steps:
        if shared := left & Counter(step.rows):
            left -= shared
            found.append(number)
    if not found:
        return ""
    first, last = min(found), max(found)
    return f", of step {first}" if first == last else f", of steps {first} to {last}"


def _counts(steps: Sequence[ObservedStep]) -> "Counter[str]":
    return Counter(chain.from_iterable(step.rows for step in steps))


def _order_difference(expected: Sequence[ObservedStep], trained: Sequence[ObservedStep]) -> int | None:
    """Return the first step that completes other rows than expected; steps may differ in size."""
    surplus: Counter[str] = Counter()
    left, right = list(expected), list(trained)
    num_left = num_right = index = 0
    for index, step in enumerate(right, 1):
        num_right += len(step.rows)
        surplus.update(step.rows)
        while left and num_left < num_right:
            num_left += len(left[0].rows)
            surplus.subtract(left.pop(0).rows)
        if num_left == num_right and any(surplus.values()):
            return index
    return index if any(surplus.values()) else None


def _compare_rates(expected: Sequence[ObservedStep], trained: Sequence[ObservedStep]) -> PropertyResult:
    for number, (one, other) in enumerate(zip(expected, trained, strict=False), 1):
        if len(one.rates) != len(other.rates) or not all(map(isclose, one.rates, other.rates)):
            return fails(f"at step {number} it is {_rates(other)}, undisturbed {_rates(one)}")
    return holds()


def _rates(step: ObservedStep) -> str:
    return ", ".join(f"{rate:.4g}" for rate in dict.fromkeys(step.rates))


def _compare_generators(expected: ObservedStep, trained: ObservedStep) -> PropertyResult:
    difference = _loss_difference([expected], [trained])
    if expected.generator == trained.generator:
        return holds("equal generators")
    if difference > ROUND_OFF / 10:
        return fails(f"other generators; with equal weights and rows, the first loss differs by {difference:.1%}")
    return holds("other generators, but the first loss does not depend on them")


def _compare_losses(expected: Sequence[ObservedStep], trained: Sequence[ObservedStep]) -> PropertyResult:
    if len(expected) != len(trained):
        return fails(f"{len(trained)} steps, undisturbed {len(expected)}")
    difference = _loss_difference(expected, trained)
    if difference == 0:
        return holds("equal to the bit")
    text = f"differs by up to {difference:.2g} of the largest loss"
    return PropertyResult("round-off", text) if difference <= ROUND_OFF else fails(text)


def _loss_difference(expected: Sequence[ObservedStep], trained: Sequence[ObservedStep]) -> float:
    largest = max((abs(step.loss) for step in expected), default=0) or 1
    return max((abs(one.loss - other.loss) for one, other in zip(expected, trained, strict=False)), default=0) / largest


def _compare_weights(baseline: Baseline, history: History) -> PropertyResult:
    expected, trained = baseline.steps[-1].after, history.steps[-1].after
    if expected.weights == trained.weights:
        return holds("equal to the bit")
    assert baseline.training.before is not None
    difference = _distance(expected, trained) / max(_distance(baseline.training.before, expected), 1e-30)
    text = f"differ by {difference:.2g} of what training changed"
    return PropertyResult("round-off", text) if difference <= ROUND_OFF else fails(text)


def _distance(one: TrainingState, other: TrainingState) -> float:
    return dist(one.sample, other.sample) if len(one.sample) == len(other.sample) else float("inf")
