"""Warnings about a run's model from its numbers: each rule is stated here, in words and as code.

An audit *proves* that each row was trained on once; that says nothing about whether the model is *good*. A run at a
thousand times the right learning rate passes its audit as well as any. Both are therefore reported separately, and the
warnings name what is certainly wrong.

This module reads no ledger and no files; callers pass the numbers. docs/operations.md lists all rules.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from assay.base.shapes import Float64, Int64
from assay.base.units import percent_text
from assay.records.evaluation import ACCURACY, LOG_LOSS, AnyEvaluation, ClassifierMetrics, ScoreMetrics

if TYPE_CHECKING:  # the records of a dataset are a twentieth of what `assay runs show` would import
    from assay.records.dataset import LengthProfile

ENDS = 10
"""Steps at the start and at the end of a run whose median losses are compared."""
MIN_STEPS_AT_END = 3
"""Two sets of this many equally distributed losses are fully separated less than one time in twenty."""
DIVERGED_FACTOR = 2.0
MAX_LISTED = 5
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
MISMATCH_NATS, MISMATCH_TIMES, MIN_MISMATCH_NATS = 0.02, 20.0, 1e-5
"""Allowed difference of sampler and policy per token in the first step; factor allowed later; negligible difference."""
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


class Rule(NamedTuple):
    """When a warning is given, and what to do about it."""

    holds: str
    hint: str
    did: str = ""
    """What such a run did, for a memo on several runs: `2 of 3 runs of baseline diverged`."""


RULES: Mapping[str, Rule] = {
    "diverged": Rule(
        f"the last training loss or gradient is not finite, or the median of the last {ENDS} losses is above "
        f"{DIVERGED_FACTOR:g} times that of the first {ENDS} and, without {ENDS // 4} outliers on each side, "
        f"every last loss is above every first; with fewer than {2 * ENDS} steps, the two halves are compared "
        f"({MIN_STEPS_AT_END} steps or more, no outliers)",
        "lower `trainer.optimizer.learning_rate` or warm up longer; `assay runs replay RUN --step N --explain`",
        "diverged",
    ),
    "spikes": Rule(
        f"a step's loss is over {LOSS_TIMES:g} times and its gradient over {GRADIENT_TIMES:g} times the "
        f"median of the {SPIKE_STEPS} steps before, both came down again, and the log ratios are over "
        f"{SPIKE_GAP:g} times those of any other step; RL methods use only the gradient",
        "`assay runs replay RUN --step N --bisect` names the rows",
        "had steps that stand far out",
    ),
    "one score": Rule(
        "every validation row has the same prediction: probability, class or number",
        "check the loss, the learning rate and the labels: the model ignores its input",
        "gave every row the same prediction",
    ),
    "worse than constant": Rule(
        "the whole interval of the log-loss is above that of predicting the class shares; for numbers, R² is below 0",
        "train longer or with a lower learning rate; check the meaning of the labels",
        "did worse than a constant prediction would",
    ),
    "no better than chance": Rule(
        "the interval of the AUC, or of the accuracy on pairs, is not wholly above 0.5",
        "use more validation rows, or train longer or with a higher learning rate",
        "may rank no better than chance",
    ),
    "reward hacking": Rule(
        f"the training reward rose (by its intervals over {ENDS} steps), and the interval of the last "
        "held-out reward is below that of an earlier evaluation",
        "the policy exploits the grader: read its completions (`assay eval chat RUN`), fix the grader, and "
        "continue from the better commit; leave out `method.validation_temperature`",
        "earned more in training and less on held-out prompts",
    ),
    "completions collapsed": Rule(
        f"completions within a group differ less than {SHRUNK:g} times as often as in the first {ENDS} steps, "
        "and the reward did not rise",
        "lower `trainer.optimizer.learning_rate`, or raise `method.kl`",
        "came to one completion",
    ),
    "groups without variance": Rule(
        f"in the last {ENDS} steps, {IDLE_SHARE:.0%} or more of the groups have equal rewards, and the reward "
        "did not rise",
        "choose prompts of medium difficulty; warm up by SFT until some completions earn a reward",
        "had nothing to learn from",
    ),
    "completions grow": Rule(
        f"completions are at least {GROWN:g} times as long as in the first {ENDS} steps, and held-out prompts "
        "did not earn more",
        "use a loss without length bias (`method.loss.type=dr_grpo`), `method.overlong`, or a grader that "
        "does not reward length",
        "wrote longer completions, no better ones",
    ),
    "completions truncated": Rule(
        f"{TRUNCATED_SHARE:.0%} or more of the completions in the last {ENDS} steps were truncated at "
        "`method.sampling.max_tokens`",
        "raise it, or reward shorter completions (`method.overlong`)",
        "had many completions cut",
    ),
    "far from the reference": Rule(
        f"the divergence from the reference was above {FAR_NATS:g} nat per token in the last {ENDS} steps",
        "raise `method.kl`, or lower `trainer.optimizer.learning_rate`",
        "went far from the reference",
    ),
    "graders fail": Rule(
        f"{FAILED_SHARE:.0%} or more of a run's completions have no reward because a grader failed",
        "fix the grader: these completions leave their groups, and failures are seldom random",
        "lost rewards to graders that fail",
    ),
    "sampler mismatch": Rule(
        f"the sampler's and the policy's logprobs differ by more than {MISMATCH_NATS:g} nats on average in the "
        f"first step, or later by {MISMATCH_TIMES:g} times as much as then",
        "sampling used another temperature, other filters or stale weights: `assay runs replay RUN --step N` "
        "samples the step again; continue from a commit before it",
        "learned from completions that another model drew",
    ),
    "steps differ": Rule(
        "the compared runs made different numbers of steps",
        "compare at equal steps, or state that longer training is the change",
    ),
    "methods differ": Rule(
        "the compared runs use two methods, so scores of one name mean two things",
        "compare both on one suite (`evaluation.suite`, `assay eval run`)",
    ),
    "guardrail at zero": Rule(
        "baseline and candidate score 0 on every item of a guardrail",
        "choose items that the baseline can solve",
    ),
    "leaking rows": Rule(
        f"at least {LEAK_SHARE:.0%} of the validation rows have the tokens of a training row",
        "split by a key that keeps them together (`column: input_ids`), or set `data.split.drop_leaks`",
        "were evaluated on rows that they had learned",
    ),
    "truncated rows": Rule(
        f"at least {CUT_SHARE:.0%} of the rows were truncated; in adopted shards: are as long as the longest row",
        "build the dataset with a larger `--max-tokens`",
    ),
    "uneven split": Rule(
        f"a split by hash holds out a share that is more than {SPLIT_SLACK:.0%} off the requested one, "
        "because groups that stay together are few or unequal",
        "choose another `data.split.seed` or a column with more values",
    ),
    "label leakage": Rule(
        f"a metadata column that the model reads is wrong on at most {LABEL_LEAK_SHARE:.0%} of the rows that "
        f"the most common class gets wrong ({MIN_OTHERS} or more rows)",
        "remove it from the recipe's columns, unless its value is known before the label",
    ),
    "underpowered look": Rule(
        f"a declared look would end more than {MAX_LOST:.0%} of the candidates that are worth having (by "
        "`rule.prior_sd`) without scaling them, and more than it would scale",
        "remove it from `looks`, or give it more seeds",
    ),
    "underpowered campaign": Rule(
        f"by its last look the campaign would scale less than {MIN_FOUND:.0%} of the candidates worth having",
        "use more seeds or items: the warning says how many",
    ),
    "underpowered guardrail": Rule(
        f"by the last look, harmless candidates would pass the guardrails less than {MIN_FOUND:.0%} of the "
        "time; or a safety benchmark has too few items to bound its rate even without failures",
        "use more items, more seeds or a wider margin: the warning says how many",
    ),
    "clusters differ": Rule(
        "primary benchmarks use different rows and count them by different columns",
        "give them one `cluster`; otherwise the interval of their mean may be too narrow",
    ),
    "outlier seed": Rule(
        "one run of an arm is an outlier (by a test that errs in one memo of twenty; three seeds or more)",
        "inspect that run before you trust the mean; a campaign of five seeds or more can declare "
        "`rule.over_seeds: trimmed`",
    ),
    "underdispersed seeds": Rule(
        "two seeds of an arm ended with equal weights; or the gains of three seeds or more scatter less than "
        "their own items allow (a test that errs in one memo of a hundred)",
        "find what the seeds share, e.g. a seed that nothing reads or a common initial commit",
    ),
    "several changes": Rule("a candidate's patch has more than one key", "make one candidate per key"),
}


def hint_text(rule: RuleName) -> str:
    """Return what to do about it, as a sentence."""
    hint = RULES[rule].hint.replace("`", "'")
    return f"{hint[0].upper()}{hint[1:]}."


class Warned(NamedTuple):
    """A rule that holds for a run."""

    rule: RuleName
    text: str
    """A sentence with its numbers."""
    steps: tuple[int, ...] = ()
    """The steps that it is about, if any."""

    def with_hint(self) -> "Warned":
        """Append what to do about it to the text."""
        return self._replace(text=f"{self.text} {hint_text(self.rule)}")


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
            named = [
                f"step {step:,} ("
                + ", ".join(
                    f"{name} {of[0]:.3g}, before {of[1]:.3g}" for name, of in zip(series_by_name, seen, strict=True)
                )
                + ")"
                for step, seen in list(found.items())[:MAX_LISTED]
            ]
            more = f" and {len(found) - MAX_LISTED:,} more" if len(found) > MAX_LISTED else ""
            yield Warned("spikes", f"{', '.join(named)}{more}.", tuple(found))

    def warnings_at(self, step: int) -> list[Warned]:
        """Return the warnings as of the commit of that step, without later numbers."""
        current = [evaluation for evaluation in self.evaluations if evaluation.step == step]
        metrics = {name: series.until(step) for name, series in self.metrics.items()}
        known = {name: series for name, series in metrics.items() if len(series.steps)}
        found = warnings_of_model(self.losses.until(step).values, current[-1] if current else None, known)
        if not current and self.was_one_score(step):
            found.append(Warned("one score", "all validation rows got the same prediction."))
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
    return metric in _WATCHED or metric.startswith(FAILED)


def warnings_of_pair(
    baseline: str, candidate: str, *, steps: tuple[int, int], methods: tuple[str, str]
) -> Iterator[Warned]:
    """Warn if two runs cannot be compared fairly; steps and methods are the baseline's, then the candidate's."""
    if steps[0] != steps[1]:
        step_counts = f"{candidate} made {steps[1]:,} steps, {baseline} {steps[0]:,}"
        yield Warned("steps differ", f"{step_counts}: the difference may be that of training longer.")
    if methods[0] != methods[1]:
        of = f"{candidate} is of method '{methods[1]}', {baseline} of '{methods[0]}'"
        yield Warned("methods differ", f"{of}: what has one name in both is not measured alike.")


def warnings_of_guardrail(name: str, baseline: Scores, candidate: Scores) -> list[Warned]:
    """Warn if a guardrail's scores are all zero."""
    if baseline.any() or candidate.any():
        return []
    return [
        Warned(
            "guardrail at zero", f"{name} is 0 on every item for both sides: it cannot get worse, so it guards nothing."
        )
    ]


def warnings_of_clusters(columns: Mapping[str, str | None]) -> list[Warned]:
    """Warn if benchmarks on different rows of one split use different cluster columns."""
    if len({*columns.values()}) < 2:
        return []
    listed = ", ".join(f"{name} by {column or 'row'}" for name, column in columns.items())
    text = f"{listed}: only the noise of rows that both contain counts as shared."
    return [Warned("clusters differ", text)]


def warnings_of_leaks(leaking: int, num_validation: int) -> list[Warned]:
    """Warn if validation rows were trained on."""
    if not num_validation or leaking / num_validation < LEAK_SHARE:
        return []
    share = percent_text(leaking / num_validation)
    return [
        Warned(
            "leaking rows",
            f"{leaking:,} of {num_validation:,} validation rows ({share}) are in the training rows, too.",
        )
    ]


def warnings_of_split(held_out: int, num_rows: int, *, target_share: float, num_dropped: int = 0) -> list[Warned]:
    """Warn if a split by hash holds out a share that is far from the requested one.

    `num_dropped` held-out rows are dropped again because they copy training rows.
    """
    found = held_out / num_rows
    if abs(found / target_share - 1.0) <= SPLIT_SLACK:
        return []
    left = percent_text((held_out - num_dropped) / num_rows)
    scored = f" ({left} without copies of training rows)" if num_dropped else ""
    target_text = f"{percent_text(target_share)} of the groups were requested."
    text = f"{percent_text(found)} of the rows are held out{scored}, {target_text}"
    return [Warned("uneven split", text)]


def warnings_of_column(column: str, *, num_correct: int, num_majority: int, num_rows: int) -> list[Warned]:
    """Warn if a metadata column leaks the label: `num_right` rows are predicted by it, `num_commonest` by the top
    class."""
    others = num_rows - num_majority
    if others < MIN_OTHERS or num_rows - num_correct > LABEL_LEAK_SHARE * others:
        return []
    text = (
        f"column '{column}' alone tells the label of {percent_text(num_correct / num_rows)} of the rows, where "
        f"the commonest class has {percent_text(num_majority / num_rows)}: is it known before the label is?"
    )
    return [Warned("label leakage", text)]


def warnings_of_cuts(lengths: "LengthProfile", *, num_rows: int, num_cut: int | None) -> list[Warned]:
    """Warn if many rows were truncated.

    If they were not counted (None), rows at the longest length count as truncated, judged by the 95th percentile,
    unless all rows are that long.
    """
    longest = lengths.max
    if num_cut is not None:
        share = num_cut / max(num_rows, 1)
        cut = f"{num_cut:,} of {num_rows:,} rows ({percent_text(share)}) were cut at {longest:,} tokens."
        return [Warned("truncated rows", cut)] if share >= CUT_SHARE else []
    if not longest or lengths.p95 < longest or lengths.mean > 0.99 * longest:
        return []
    piled_up = f"one row in {round(1 / CUT_SHARE)} or more has {longest:,} tokens, the most that any has"
    return [Warned("truncated rows", f"{piled_up}: they were likely cut.")]


def _divergence(losses: Sequence[float] | Float64[np.ndarray, "step"]) -> Iterator[Warned]:
    if not len(losses):
        return
    if not math.isfinite(losses[-1]):
        yield Warned("diverged", "the training loss or its gradient is not finite at the end.")
        return
    ends = min(ENDS, len(losses) // 2)
    if ends < MIN_STEPS_AT_END:
        return
    first, last = _median(losses[:ends]), _median(losses[-ends:])
    trimmed = ends // 4 if ends == ENDS else 0
    are_separated = np.sort(losses[:ends])[-1 - trimmed] < np.sort(losses[-ends:])[trimmed]
    if 0.0 < DIVERGED_FACTOR * first < last and are_separated:
        yield Warned("diverged", f"the training loss began at {first:.4g} and ended at {last:.4g}.")


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


_WATCHED = {
    *("reward", "distinct", "zero_std", "length", "truncated", "kl", "logprob_gap"),
    *(HELD_OUT, HELD_OUT_ERROR, ONE_SCORE),
}


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
        yield Warned(
            "completions collapsed",
            f"{first:.0%} of a group's completions were distinct at first, {last:.0%} at the end.",
        )
    _, last = ends("zero_std")
    if last >= IDLE_SHARE and not rose:
        yield Warned("groups without variance", f"in {last:.0%} of the groups every answer earned the same at the end.")
    first, last = ends("length")
    if last >= GROWN * first and not _earns_more(metrics):
        yield Warned("completions grow", f"completions had {first:.4g} tokens at first, {last:.4g} at the end.")
    _, last = ends("truncated")
    if last >= TRUNCATED_SHARE:
        yield Warned("completions truncated", f"{last:.0%} of the completions were truncated at the end.")
    _, last = ends("kl")
    if last > FAR_NATS:
        yield Warned("far from the reference", f"{last:.3g} nats per token at the end.")


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
        yield Warned(
            "reward hacking",
            f"from step {best_step:,} to {last_step:,} the reward of training rose from {was.mean:.3f} to "
            f"{earned.mean:.3f}, that of held-out prompts fell from {best.mean:.3f} to {last.mean:.3f} "
            f"({last.low:.3f} to {last.high:.3f}).",
        )


def _failing(metrics: Mapping[str, StepSeries]) -> Iterator[Warned]:
    values = metrics[FAILED].values
    share = float(values.mean()) if len(values) else 0.0
    if share >= FAILED_SHARE:
        kinds = {
            name.removeprefix(f"{FAILED}_"): float(series.values.mean())
            for name, series in metrics.items()
            if name.startswith(f"{FAILED}_") and series.values.any()
        }
        by_kind = ", ".join(f"{percent_text(part)} {kind}" for kind, part in sorted(kinds.items()))
        yield Warned("graders fail", f"{percent_text(share)} of the completions have no reward: {by_kind}.")


def _sampler_mismatch(metrics: Mapping[str, StepSeries]) -> Iterator[Warned]:
    """Stale weights show up once weights have changed; another temperature shows up at once."""
    if "logprob_gap" not in metrics or not len(metrics["logprob_gap"].steps):
        return
    steps, gaps = metrics["logprob_gap"]
    most = max(MIN_MISMATCH_NATS, MISMATCH_TIMES * float(gaps[0]))
    is_off_at_once = gaps[0] > MISMATCH_NATS
    far = np.flatnonzero((gaps > most) | is_off_at_once)
    if not len(far):
        return
    cause = (
        "which suggests another sampling temperature, other filters, or another model"
        if is_off_at_once
        else "and in none before, which suggests that completions were sampled with stale weights"
    )
    yield Warned(
        "sampler mismatch",
        f"at step {int(steps[far[0]]):,} sampler and trainer were {gaps[far[0]]:.2g} nats a token apart, so in "
        f"{len(far):,} of {len(steps):,} steps, {cause}.",
    )


def _of_classifier(metrics: ClassifierMetrics) -> Iterator[Warned]:
    predictions = [bin_.mean_predicted for bin_ in metrics.calibration]
    is_one_score = (
        bool(predictions)
        and max(predictions) - min(predictions) < SAME_PROBABILITY
        and (metrics.auc is None or metrics.auc.value == 0.5)
    )
    if is_one_score:
        yield Warned("one score", f"all {metrics.num_rows:,} validation rows got the probability {predictions[0]:.4g}.")
    share = metrics.num_positive / max(metrics.num_rows, 1)
    constant, low = _entropy(share, 1.0 - share), metrics.log_loss.low
    if low is not None and low > constant:
        yield Warned(
            "worse than constant",
            f"its log-loss is {metrics.log_loss.value:.4f}; always saying these rows' share of "
            f"positives has {constant:.4f}.",
        )
    low = None if metrics.auc is None else metrics.auc.low
    if not is_one_score and low is not None and low <= 0.5:
        yield Warned("no better than chance", f"the interval of its AUC begins at {low:.4f}: a coin has 0.5.")


def _of_scores(metrics: ScoreMetrics) -> Iterator[Warned]:
    """Warn about predictions of classes, pairs or numbers; other scores do not have such rules."""
    predicted_counts = np.array([class_.predicted_as for class_ in metrics.classes]).sum(axis=0)
    if len(metrics.classes) > 1 and np.count_nonzero(predicted_counts) == 1:
        name = metrics.classes[int(np.argmax(predicted_counts))].name
        yield Warned("one score", f"all {metrics.num_rows:,} validation rows were taken for class '{name}'.")
    loss = next((measured.estimate for measured in metrics.measured if measured.metric == LOG_LOSS), None)
    constant = _entropy(*(class_.num_rows / max(metrics.num_rows, 1) for class_ in metrics.classes))
    if metrics.classes and loss is not None and loss.low is not None and loss.low > constant:
        yield Warned(
            "worse than constant",
            f"its log-loss is {loss.value:.4f}; always saying these rows' shares of the classes has {constant:.4f}.",
        )
    pairs = next((measured.estimate for measured in metrics.measured if measured.metric.name == ACCURACY.name), None)
    if not metrics.classes and pairs is not None and pairs.low is not None and pairs.low <= 0.5:
        yield Warned(
            "no better than chance", f"the interval of its accuracy begins at {pairs.low:.4f}: a coin has 0.5."
        )
    if (fit := metrics.fit) is None:
        return
    predictions = [bin_.mean_predicted for bin_ in fit.bins]
    if (
        predictions
        and fit.label_deviation > 0.0
        and max(predictions) - min(predictions) < SAME_NUMBER * fit.label_deviation
    ):
        yield Warned("one score", f"all {metrics.num_rows:,} validation rows got the number {predictions[0]:.4g}.")
    if fit.r_squared is not None and fit.r_squared < 0.0:
        yield Warned("worse than constant", f"its R² is {fit.r_squared:.3f}: the labels' mean would do better.")


def _entropy(*shares: float) -> float:
    """Return the entropy of one label in nats."""
    return -sum(share * math.log(share) for share in shares if share > 0.0)
