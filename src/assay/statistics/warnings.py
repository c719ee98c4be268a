"""Warnings about a run's model from its numbers: each rule as code. `reporting.views.warnings` states it in words.

An audit *proves* that each row was trained on once; that says nothing about whether the model is *good*. A run at a
thousand times the right learning rate passes its audit as well as any. Both are therefore reported separately, and the
warnings name what is certainly wrong.

This module reads no ledger and no files; callers pass the numbers. docs/operations.md lists all rules.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from assay.base.shapes import Float64, Int64
from assay.records.evaluation import ACCURACY, LOG_LOSS, AnyEvaluation, ClassifierMetrics, ScoreMetrics
from assay.records.rollout_log import largest_gap
from assay.records.statement import Statement

if TYPE_CHECKING:  # the records of a dataset are a twentieth of what `assay runs show` would import
    from assay.records.dataset import LengthProfile

ENDS = 10
"""Steps at the start and at the end of a run whose median losses are compared."""
MIN_STEPS_AT_END = 3
"""Two sets of this many equally distributed losses are fully separated less than one time in twenty."""
DIVERGED_FACTOR = 2.0
LABEL_LEAK_SHARE, MIN_OTHERS = 0.02, 20
"""A column leaks the label if it mispredicts at most this share of the rows outside the most common class, given at
least this many such rows."""
LEAK_SHARE = 0.01
CUT_SHARE = 0.05
SPLIT_SLACK = 0.2
MIN_FOUND = 0.5
MAX_LOST = 0.25
Z = 1.96
"""Half a 95% interval, in standard errors."""
SHRUNK, GROWN = 0.5, 2.0
IDLE_SHARE = 0.9
TRUNCATED_SHARE = 0.25
FAR_NATS = 1.0
FAILED_SHARE = 0.01
MISMATCH_NATS = 0.02
"""Allowed difference of sampler and policy per token in the first step."""
FAILED = "failed_grades"
"""Share of a step's completions without a grade; by kind in `failed_grades_KIND`."""
ONE_SCORE = "one_score"
"""1 at an evaluation in which every row got the same prediction, else 0."""
SAME_PROBABILITY, SAME_NUMBER = 1e-9, 1e-6
"""Largest difference of equal predictions; for numbers, relative to the labels' deviation."""
HELD_OUT = "validation_reward"
HELD_OUT_ERROR = "validation_reward_error"

SPIKE_STEPS, SPIKE_GAP = 8, 2.0
LOSS_TIMES, GRADIENT_TIMES = 2.0, 10.0
"""A spike is measured against the median of the `SPIKE_STEPS` steps before it: the log of the ratio, over the log of
these factors. The largest rises of a curve must be `SPIKE_GAP` times the next largest: noise with the tail of Student's
t with four degrees of freedom has such a gap in one of 16 curves, whatever their length."""

RuleName = Literal[
    "diverged",
    "spikes",
    "one score",
    "worse than constant",
    "no better than chance",
    "reward hacking",
    "completions collapsed",
    "groups without variance",
    "completions grow",
    "completions truncated",
    "far from the reference",
    "graders fail",
    "sampler mismatch",
    "steps differ",
    "methods differ",
    "rows not observed",
    "guardrail at zero",
    "leaking rows",
    "truncated rows",
    "uneven split",
    "label leakage",
    "underpowered look",
    "underpowered campaign",
    "underpowered guardrail",
    "clusters differ",
    "outlier seed",
    "underdispersed seeds",
    "several changes",
]


Scores = Float64[np.ndarray, "seed item"]


class StepSeries(NamedTuple):
    """A metric at recorded steps."""

    steps: Int64[np.ndarray, "point"]
    """Rising."""
    values: Float64[np.ndarray, "point"]

    @classmethod
    def of(cls, values: Mapping[int, float]) -> "StepSeries":
        return cls(np.array([*values], np.int64), np.array([*values.values()], np.float64))

    def until(self, step: int) -> "StepSeries":
        """Return the series up to and including `step`."""
        end = int(np.searchsorted(self.steps, step, side="right"))
        return StepSeries(self.steps[:end], self.values[:end])


class Warned(NamedTuple):
    """A rule that holds for a run, with its numbers. `reporting.views.warnings` has the sentences."""

    rule: RuleName
    values: Mapping[str, Any]
    case: str = ""
    """Which of the rule's sentences, if it has several."""
    steps: tuple[int, ...] = ()
    """The steps that it is about, if any."""

    def statement(self) -> Statement:
        """Return the warning as records hold it: the case is among the values, and a number that is not finite is
        None."""
        return Statement(code=self.rule, values={**_stored(self.values), "case": self.case})


def _stored(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _stored(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_stored(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class ModelNumbers(NamedTuple):
    """A run's losses, metrics and evaluations up to now."""

    losses: StepSeries
    """Training losses."""
    metrics: Mapping[str, StepSeries]
    """The watched metrics (`is_watched`)."""
    evaluations: Sequence[AnyEvaluation]
    ends_finite: bool = True
    """False if the last attempt ended on a non-finite loss or gradient, whose step is not recorded."""

    def warnings(self) -> list[Warned]:
        """Return the warnings after the last step."""
        last = self.evaluations[-1] if self.evaluations else None
        losses = self.losses.values if self.ends_finite else np.append(self.losses.values, math.nan)
        return [*warnings_of_model(losses, last, self.metrics), *self._spikes()]

    def _spikes(self) -> Iterator[Warned]:
        series_by_name = {"loss": (self.losses, LOSS_TIMES)} if FAILED not in self.metrics else {}
        if "gradient_norm" in self.metrics:
            series_by_name["gradient"] = self.metrics["gradient_norm"], GRADIENT_TIMES
        if found := spikes_of(list(series_by_name.values())):
            spikes = {step: dict(zip(series_by_name, seen, strict=True)) for step, seen in found.items()}
            yield Warned("spikes", {"spikes": spikes}, steps=tuple(found))

    def warnings_at(self, step: int) -> list[Warned]:
        """Return the warnings as of the commit of that step, without later numbers."""
        current = [evaluation for evaluation in self.evaluations if evaluation.step == step]
        metrics = {name: series.until(step) for name, series in self.metrics.items()}
        known = {name: series for name, series in metrics.items() if len(series.steps)}
        found = warnings_of_model(self.losses.until(step).values, current[-1] if current else None, known)
        if not current and self.was_one_score(step):
            found.append(Warned("one score", {}))
        return found

    def was_one_score(self, step: int) -> bool | None:
        """Return whether every row got the same prediction after that step; None if it was not evaluated."""
        looks = self.metrics.get(ONE_SCORE, StepSeries.of({}))
        found = looks.values[looks.steps == step]
        return bool(found[-1]) if len(found) else None


def warnings_of_model(
    losses: Sequence[float] | Float64[np.ndarray, "step"],
    evaluation: AnyEvaluation | None,
    metrics: Mapping[str, StepSeries] = MappingProxyType({}),
) -> list[Warned]:
    """Return the warnings from a run's training losses, its last evaluation and its watched metrics."""
    # The policy-gradient surrogate loss is about 0 throughout and says nothing about divergence.
    found = [*_of_rollouts(metrics)] if FAILED in metrics else [*_divergence(losses)]
    if evaluation is None:
        return found
    overall = evaluation.overall
    found += warnings_of_leaks(evaluation.num_leaking or 0, overall.num_rows)
    return found + list(_of_classifier(overall) if isinstance(overall, ClassifierMetrics) else _of_scores(overall))


def is_watched(metric: str) -> bool:
    """Return whether `warnings_of_model` uses a metric."""
    return metric in WATCHED or metric.startswith(FAILED)


def warnings_of_pair(
    baseline: str, candidate: str, *, steps: tuple[int, int], methods: tuple[str, str]
) -> Iterator[Warned]:
    """Warn if two runs cannot be compared fairly; steps and methods are the baseline's, then the candidate's."""
    if steps[0] != steps[1]:
        yield Warned("steps differ", {"candidate": candidate, "baseline": baseline, "steps": steps})
    if methods[0] != methods[1]:
        yield Warned("methods differ", {"candidate": candidate, "baseline": baseline, "methods": methods})


def warnings_of_leaks(leaking: int, num_validation: int) -> list[Warned]:
    """Warn if validation rows were trained on."""
    if not num_validation or leaking / num_validation < LEAK_SHARE:
        return []
    return [Warned("leaking rows", {"leaking": leaking, "rows": num_validation, "share": leaking / num_validation})]


def warnings_of_split(held_out: int, num_rows: int, *, target_share: float, num_dropped: int = 0) -> list[Warned]:
    """Warn if a split by hash holds out a share that is far from the requested one.

    `num_dropped` held-out rows are dropped again because they copy training rows.
    """
    found = held_out / num_rows
    if abs(found / target_share - 1.0) <= SPLIT_SLACK:
        return []
    values = {"share": found, "left": (held_out - num_dropped) / num_rows, "target": target_share}
    return [Warned("uneven split", values, "dropped" if num_dropped else "")]


def warnings_of_column(column: str, *, num_correct: int, num_majority: int, num_rows: int) -> list[Warned]:
    """Warn if a metadata column leaks the label: `num_right` rows are predicted by it, `num_commonest` by the top
    class."""
    others = num_rows - num_majority
    if others < MIN_OTHERS or num_rows - num_correct > LABEL_LEAK_SHARE * others:
        return []
    shares = {"share": num_correct / num_rows, "majority": num_majority / num_rows}
    return [Warned("label leakage", {"column": column, **shares})]


def warnings_of_cuts(lengths: "LengthProfile", *, num_rows: int, num_cut: int | None) -> list[Warned]:
    """Warn if many rows were truncated.

    If they were not counted (None), rows at the longest length count as truncated, judged by the 95th percentile,
    unless all rows are that long.
    """
    longest = lengths.max
    if num_cut is not None:
        share = num_cut / max(num_rows, 1)
        values = {"cut": num_cut, "rows": num_rows, "share": share, "longest": longest}
        return [Warned("truncated rows", values)] if share >= CUT_SHARE else []
    if not longest or lengths.p95 < longest or lengths.mean > 0.99 * longest:
        return []
    return [Warned("truncated rows", {"one_in": round(1 / CUT_SHARE), "longest": longest}, "not counted")]


def _divergence(losses: Sequence[float] | Float64[np.ndarray, "step"]) -> Iterator[Warned]:
    if not len(losses):
        return
    if not math.isfinite(losses[-1]):
        yield Warned("diverged", {}, "not finite")
        return
    ends = min(ENDS, len(losses) // 2)
    if ends < MIN_STEPS_AT_END:
        return
    first, last = _median(losses[:ends]), _median(losses[-ends:])
    trimmed = ends // 4 if ends == ENDS else 0
    are_separated = np.sort(losses[:ends])[-1 - trimmed] < np.sort(losses[-ends:])[trimmed]
    if 0.0 < DIVERGED_FACTOR * first < last and are_separated:
        yield Warned("diverged", {"first": first, "last": last})


def spikes_of(pairs: Sequence[tuple[StepSeries, float]]) -> dict[int, list[tuple[float, float]]]:
    """Return, by step, each curve's value and the median before it, for steps at which all curves spike.

    Each curve comes with the factor over the median that makes a spike.
    """
    shared = sorted(set.intersection(*(set(series.steps.tolist()) for series, _ in pairs))) if pairs else []
    if len(shared) <= SPIKE_STEPS:
        return {}
    values_of = [series.values[np.searchsorted(series.steps, shared)] for series, _ in pairs]
    rises = [_rises(values) / math.log(times) for values, (_, times) in zip(values_of, pairs, strict=True)]
    score = np.nan_to_num(np.min(rises, axis=0), nan=0.0, posinf=0.0)
    ordered = np.append(np.sort(score)[::-1], 0.0)
    spikes = ordered[:-1][(ordered[:-1] > 1.0) & (ordered[:-1] >= SPIKE_GAP * ordered[1:])]
    found = np.flatnonzero(score >= (spikes[-1] if len(spikes) else math.inf)).tolist()
    return {
        shared[at + SPIKE_STEPS]: [
            (float(values[at + SPIKE_STEPS]), _median(values[at : at + SPIKE_STEPS])) for values in values_of
        ]
        for at in found
    }


def _rises(values: Float64[np.ndarray, "step"]) -> Float64[np.ndarray, "point"]:
    """Return the log of each value over the median of the steps before; 0 if the values after it stay up."""
    logs = np.log(np.maximum(values, np.finfo(np.float64).tiny))
    before = np.sort(np.lib.stride_tricks.sliding_window_view(logs[:-1], SPIKE_STEPS))[:, SPIKE_STEPS // 2]
    rises = np.where(values[SPIKE_STEPS:] > 0, logs[SPIKE_STEPS:] - before, 0.0)
    for index in np.flatnonzero(rises > math.log(min(LOSS_TIMES, GRADIENT_TIMES))).tolist():
        after = logs[index + SPIKE_STEPS + 1 : index + 2 * SPIKE_STEPS + 1] - before[index]
        if len(after) and _median(after) > rises[index] / 2:
            rises[index] = 0.0
    return rises


def _median(values: Sequence[float] | Float64[np.ndarray, "point"]) -> float:
    """Return the median without `np.median`, whose import of masked arrays takes a twentieth of `assay runs show`."""
    half = len(values) // 2
    return float(np.sort(values)[len(values) - 1 - half : half + 1].mean())


WATCHED = (
    "reward", "distinct", "zero_std", "length", "truncated", "kl", "logprob_gap", HELD_OUT, HELD_OUT_ERROR, ONE_SCORE,
)  # fmt: skip
"""Metrics that `warnings_of_model` uses, besides those that begin with `FAILED`."""


class _Interval(NamedTuple):
    mean: float
    low: float
    high: float


def _interval(values: Float64[np.ndarray, "point"]) -> _Interval:
    """Return the interval of the mean from the scatter of the values; infinite for a single value."""
    mean = float(values.mean())
    half = Z * float(values.std(ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else math.inf
    return _Interval(mean, mean - half, mean + half)


def _of_rollouts(metrics: Mapping[str, StepSeries]) -> Iterator[Warned]:
    reward = metrics["reward"] if "reward" in metrics else metrics[FAILED]
    yield from _reward_leaks(metrics)
    yield from _failing(metrics)
    yield from _sampler_mismatch(metrics)
    if len(reward.steps) < 2 * ENDS:
        return

    def ends(name: str) -> tuple[float, float]:
        """Return the medians at the start and at the end; NaN if the run has no such metric."""
        if name not in metrics or not len(metrics[name].values):
            return math.nan, math.nan
        values = metrics[name].values
        return _median(values[:ENDS]), _median(values[-ENDS:])

    earned = [_interval(part) for part in (reward.values[:ENDS], reward.values[-ENDS:])]
    rose = earned[1].low > earned[0].high
    first, last = ends("distinct")
    if last < SHRUNK * first and not rose:
        yield Warned("completions collapsed", {"first": first, "last": last})
    _, last = ends("zero_std")
    if last >= IDLE_SHARE and not rose:
        yield Warned("groups without variance", {"last": last})
    first, last = ends("length")
    if last >= GROWN * first and not _earns_more(metrics):
        yield Warned("completions grow", {"first": first, "last": last})
    _, last = ends("truncated")
    if last >= TRUNCATED_SHARE:
        yield Warned("completions truncated", {"last": last})
    _, last = ends("kl")
    if last > FAR_NATS:
        yield Warned("far from the reference", {"last": last})


def _held_out(metrics: Mapping[str, StepSeries]) -> list[tuple[int, _Interval]]:
    """Return the rewards of held-out prompts by evaluation."""
    if not {HELD_OUT, HELD_OUT_ERROR} <= metrics.keys():
        return []
    means, errors = metrics[HELD_OUT], metrics[HELD_OUT_ERROR]
    by_step = dict(zip(errors.steps.tolist(), errors.values.tolist(), strict=True))
    return [
        (step, _Interval(mean, mean - Z * by_step[step], mean + Z * by_step[step]))
        for step, mean in zip(means.steps.tolist(), means.values.tolist(), strict=True)
        if step in by_step
    ]


def _earns_more(metrics: Mapping[str, StepSeries]) -> bool:
    evaluations = _held_out(metrics)
    return bool(evaluations) and evaluations[-1][1].low > evaluations[0][1].high


def _reward_leaks(metrics: Mapping[str, StepSeries]) -> Iterator[Warned]:
    evaluations = _held_out(metrics)
    if len(evaluations) < 2 or "reward" not in metrics:
        return
    last_step, last = evaluations[-1]
    best_step, best = max(evaluations[:-1], key=lambda point: point[1].low)
    steps, values = metrics["reward"]
    # Before the first step there is no training reward yet, so the first steps are used.
    ends = (max(best_step, ENDS), last_step)
    before, now = (values[(steps > step - ENDS) & (steps <= step)] for step in ends)
    if last.high >= best.low or not (len(before) and len(now)):
        return
    was, earned = _interval(before), _interval(now)
    if earned.low > was.high:
        training, held_out = (was.mean, earned.mean), (best.mean, last.mean, last.low, last.high)
        yield Warned("reward hacking", {"steps": (best_step, last_step), "training": training, "held_out": held_out})


def _failing(metrics: Mapping[str, StepSeries]) -> Iterator[Warned]:
    values = metrics[FAILED].values
    share = float(values.mean()) if len(values) else 0.0
    if share >= FAILED_SHARE:
        kinds = {
            name.removeprefix(f"{FAILED}_"): float(series.values.mean())
            for name, series in sorted(metrics.items())
            if name.startswith(f"{FAILED}_") and series.values.any()
        }
        yield Warned("graders fail", {"share": share, "kinds": kinds})


def _sampler_mismatch(metrics: Mapping[str, StepSeries]) -> Iterator[Warned]:
    """Stale weights show up once weights have changed; another temperature shows up at once."""
    if "logprob_gap" not in metrics or not len(metrics["logprob_gap"].steps):
        return
    steps, gaps = metrics["logprob_gap"]
    is_off_at_once = gaps[0] > MISMATCH_NATS
    far = np.flatnonzero((gaps > largest_gap(float(gaps[0]))) | is_off_at_once)
    if not len(far):
        return
    values = {"step": int(steps[far[0]]), "gap": float(gaps[far[0]]), "far": len(far), "steps": len(steps)}
    yield Warned("sampler mismatch", values, "at once" if is_off_at_once else "")


def _of_classifier(metrics: ClassifierMetrics) -> Iterator[Warned]:
    predictions = [bin_.mean_predicted for bin_ in metrics.calibration]
    is_one_score = (
        bool(predictions)
        and max(predictions) - min(predictions) < SAME_PROBABILITY
        and (metrics.auc is None or metrics.auc.value == 0.5)
    )
    if is_one_score:
        yield Warned("one score", {"rows": metrics.num_rows, "probability": predictions[0]}, "probability")
    share = metrics.num_positive / max(metrics.num_rows, 1)
    constant, low = _entropy(share, 1.0 - share), metrics.log_loss.low
    if low is not None and low > constant:
        yield Warned("worse than constant", {"loss": metrics.log_loss.value, "constant": constant}, "binary")
    low = None if metrics.auc is None else metrics.auc.low
    if not is_one_score and low is not None and low <= 0.5:
        yield Warned("no better than chance", {"metric": "AUC", "low": low})


def _of_scores(metrics: ScoreMetrics) -> Iterator[Warned]:
    """Warn about predictions of classes, pairs or numbers; other scores do not have such rules."""
    predicted_counts = np.array([class_.predicted_as for class_ in metrics.classes]).sum(axis=0)
    if len(metrics.classes) > 1 and np.count_nonzero(predicted_counts) == 1:
        name = metrics.classes[int(np.argmax(predicted_counts))].name
        yield Warned("one score", {"rows": metrics.num_rows, "class": name}, "class")
    loss = next((measured.estimate for measured in metrics.measured if measured.metric == LOG_LOSS), None)
    constant = _entropy(*(class_.num_rows / max(metrics.num_rows, 1) for class_ in metrics.classes))
    if metrics.classes and loss is not None and loss.low is not None and loss.low > constant:
        yield Warned("worse than constant", {"loss": loss.value, "constant": constant}, "classes")
    pairs = next((measured.estimate for measured in metrics.measured if measured.metric.name == ACCURACY.name), None)
    if not metrics.classes and pairs is not None and pairs.low is not None and pairs.low <= 0.5:
        yield Warned("no better than chance", {"metric": "accuracy", "low": pairs.low})
    if (fit := metrics.fit) is None:
        return
    predictions = [bin_.mean_predicted for bin_ in fit.bins]
    if (
        predictions
        and fit.label_deviation > 0.0
        and max(predictions) - min(predictions) < SAME_NUMBER * fit.label_deviation
    ):
        yield Warned("one score", {"rows": metrics.num_rows, "number": predictions[0]}, "number")
    if fit.r_squared is not None and fit.r_squared < 0.0:
        yield Warned("worse than constant", {"r_squared": fit.r_squared}, "fit")


def _entropy(*shares: float) -> float:
    """Return the entropy of one label in nats."""
    return -sum(share * math.log(share) for share in shares if share > 0.0)
