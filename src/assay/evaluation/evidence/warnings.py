"""What a model's numbers warn of: each rule stands here, in words and as code, and nowhere else.

*Proved* is about rows: each was learned once. *Good* is about the model, and the first says nothing of the
second: a run at a thousand times the right learning rate is proved as well as any. So the two are marked apart
wherever a run is shown, and what can be seen to be wrong without an opinion is named.

Knows no ledger and no files; callers bring the numbers. docs/operations.md holds the table of all rules.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float64

from assay.base.units import percent_text
from assay.records.dataset import LengthProfile
from assay.records.evaluation import ACCURACY, LOG_LOSS, AnyEvaluation, ClassifierMetrics, ScoreMetrics

ENDS = 10
"""Steps at the beginning and at the end of a run whose median losses are compared."""
DIVERGED_FACTOR = 2.0
LEAKING_SHARE = 0.01
CUT_SHARE = 0.05
LEAST_FOUND = 0.5
MOST_LOST = 0.25

RuleName = Literal[
    "diverged",
    "one score",
    "worse than constant",
    "no better than chance",
    "steps differ",
    "guardrail at zero",
    "leaking rows",
    "cut rows",
    "look cannot decide",
    "campaign cannot answer",
    "several changes",
]


Scores = Float64[np.ndarray, "seed item"]


class Rule(NamedTuple):
    """When a warning is given, and what to do about it."""

    holds: str
    cure: str
    did: str = ""
    """What a run did of which it holds, as a memo says it of several: `2 of 3 runs of baseline diverged`."""


RULES: Mapping[str, Rule] = {
    "diverged": Rule(
        f"the training loss ended not finite, or the median of its last {ENDS} steps is above "
        f"{DIVERGED_FACTOR:g} times that of its first {ENDS}",
        "lower `trainer.optimizer.learning_rate`, or warm up longer; `assay replay RUN --step N --explain`",
        "diverged",
    ),
    "one score": Rule(
        "every validation row got the same prediction: probability, class or number",
        "the model says nothing of a row: look at the loss, the learning rate and the labels",
        "gave every row the same answer",
    ),
    "worse than constant": Rule(
        "the whole interval of the log-loss is above that of always predicting the shares of the classes; of "
        "numbers, R² is below 0: their mean would do better",
        "train longer or slower; check that the labels mean what the recipe takes them for",
        "did worse than one answer for every row would",
    ),
    "no better than chance": Rule(
        "the interval of the AUC, or of the accuracy on pairs, reaches down to 0.5",
        "more validation rows, or a model that ranks: train longer or faster; nothing is shown yet",
        "may rank no better than chance",
    ),
    "steps differ": Rule(
        "the runs that are compared made different numbers of steps",
        "compare at equal steps, or say that the longer training is the change",
    ),
    "guardrail at zero": Rule(
        "baseline and candidate score 0 on every item of a guardrail",
        "a score that cannot fall guards nothing: choose items that the baseline can do",
    ),
    "leaking rows": Rule(
        f"at least {LEAKING_SHARE:.0%} of the validation rows have the tokens of a training row",
        "split by a key that keeps them together (`column: input_ids`), or set `data.split.drop_leaks`",
    ),
    "cut rows": Rule(
        f"at least {CUT_SHARE:.0%} of the rows were cut; of shards that were adopted: are as "
        "long as the longest, so they likely were",
        "build the dataset with a larger `--max-tokens`",
    ),
    "look cannot decide": Rule(
        f"a declared look would end a campaign, unscaled, on more than {MOST_LOST:.0%} of the candidates that "
        "are worth having (by `rule.prior_sd`), and on more than it would scale",
        "leave it out of `looks`, or take it with more seeds",
    ),
    "campaign cannot answer": Rule(
        f"by its last look a campaign would scale less than {LEAST_FOUND:.0%} of them",
        "more seeds, or more items: the warning says how many",
    ),
    "several changes": Rule(
        "a candidate's patch has more than one key",
        "make a candidate of each",
    ),
}


class Warned(NamedTuple):
    """One rule that holds."""

    rule: RuleName
    text: str
    """A sentence with its numbers."""


def warnings_of_model(losses: Sequence[float], evaluation: AnyEvaluation | None) -> list[Warned]:
    """What a run's kept training losses, step by step, and its last evaluation warn of."""
    found = [*_divergence(losses)]
    if evaluation is None:
        return found
    metrics = evaluation.overall
    return found + list(
        _of_classifier(metrics) if isinstance(metrics, ClassifierMetrics) else _of_scores(metrics)
    )


def warnings_of_pair(baseline: str, candidate: str, *, steps: tuple[int, int]) -> list[Warned]:
    """What keeps two runs from being compared fairly; `steps` are the baseline's and the candidate's."""
    if steps[0] == steps[1]:
        return []
    made = f"{candidate} made {steps[1]:,} steps, {baseline} {steps[0]:,}"
    return [Warned("steps differ", f"{made}: the difference may be that of training longer.")]


def warnings_of_guardrail(name: str, baseline: Scores, candidate: Scores) -> list[Warned]:
    """What the scores on a benchmark that must not get worse warn of."""
    if baseline.any() or candidate.any():
        return []
    return [
        Warned(
            "guardrail at zero",
            f"{name} is 0 on every item for both sides: it cannot get worse, so it guards nothing.",
        )
    ]


def warnings_of_leaks(leaking: int, num_validation: int) -> list[Warned]:
    """Where validation rows were trained on."""
    if not num_validation or leaking / num_validation < LEAKING_SHARE:
        return []
    share = percent_text(leaking / num_validation)
    return [
        Warned(
            "leaking rows",
            f"{leaking:,} of {num_validation:,} validation rows ({share}) are in the training rows, too.",
        )
    ]


def warnings_of_cuts(lengths: LengthProfile, *, num_rows: int, num_cut: int | None) -> list[Warned]:
    """Where many rows were cut. Where nobody counted them (None): where they pile up at the longest length, as
    the 95th percentile tells; not where all are as long."""
    longest = lengths.max
    if num_cut is not None:
        share = num_cut / max(num_rows, 1)
        cut = f"{num_cut:,} of {num_rows:,} rows ({percent_text(share)}) were cut at {longest:,} tokens."
        return [Warned("cut rows", cut)] if share >= CUT_SHARE else []
    if not longest or lengths.p95 < longest or lengths.mean > 0.99 * longest:
        return []
    piled_up = f"one row in {round(1 / CUT_SHARE)} or more has {longest:,} tokens, the most that any has"
    return [Warned("cut rows", f"{piled_up}: they were likely cut.")]


def _divergence(losses: Sequence[float]) -> Iterator[Warned]:
    if not len(losses):
        return
    if not math.isfinite(losses[-1]):
        yield Warned("diverged", "the training loss is not finite at the end.")
        return
    ends = min(ENDS, max(1, len(losses) // 2))
    first, last = (float(np.median(part)) for part in (losses[:ends], losses[-ends:]))
    if 0.0 < DIVERGED_FACTOR * first < last:
        yield Warned("diverged", f"the training loss began at {first:.4g} and ended at {last:.4g}.")


def _of_classifier(metrics: ClassifierMetrics) -> Iterator[Warned]:
    said = [each.mean_predicted for each in metrics.calibration]
    is_one_score = (
        bool(said) and max(said) - min(said) < 1e-9 and (metrics.auc is None or metrics.auc.value == 0.5)
    )
    if is_one_score:
        yield Warned(
            "one score", f"all {metrics.num_rows:,} validation rows got the probability {said[0]:.4g}."
        )
    share = metrics.num_positive / max(metrics.num_rows, 1)
    constant, low = _entropy(share, 1.0 - share), metrics.log_loss.low
    if low is not None and low > constant:
        yield Warned(
            "worse than constant",
            f"its log-loss is {metrics.log_loss.value:.4f}; always saying the share of positives has "
            f"{constant:.4f}.",
        )
    low = None if metrics.auc is None else metrics.auc.low
    if not is_one_score and low is not None and low <= 0.5:
        yield Warned("no better than chance", f"the interval of its AUC begins at {low:.4f}: a coin has 0.5.")


def _of_scores(metrics: ScoreMetrics) -> Iterator[Warned]:
    """Warnings of several classes, of pairs, or of numbers; other rows' scores say nothing of the kind."""
    taken_for = np.array([each.predicted_as for each in metrics.classes]).sum(axis=0)
    if len(metrics.classes) > 1 and np.count_nonzero(taken_for) == 1:
        name = metrics.classes[int(np.argmax(taken_for))].name
        yield Warned("one score", f"all {metrics.num_rows:,} validation rows were taken for class '{name}'.")
    loss = next((each.estimate for each in metrics.measured if each.metric == LOG_LOSS), None)
    constant = _entropy(*(each.num_rows / max(metrics.num_rows, 1) for each in metrics.classes))
    if metrics.classes and loss is not None and loss.low is not None and loss.low > constant:
        yield Warned(
            "worse than constant",
            f"its log-loss is {loss.value:.4f}; always saying the classes' shares has {constant:.4f}.",
        )
    pairs = next((each.estimate for each in metrics.measured if each.metric.name == ACCURACY.name), None)
    if not metrics.classes and pairs is not None and pairs.low is not None and pairs.low <= 0.5:
        yield Warned(
            "no better than chance", f"the interval of its accuracy begins at {pairs.low:.4f}: a coin has 0.5."
        )
    if (fit := metrics.fit) is None:
        return
    said = [each.mean_predicted for each in fit.bins]
    if said and fit.label_deviation > 0.0 and max(said) - min(said) < 1e-6 * fit.label_deviation:
        yield Warned("one score", f"all {metrics.num_rows:,} validation rows got the number {said[0]:.4g}.")
    if fit.r_squared is not None and fit.r_squared < 0.0:
        yield Warned("worse than constant", f"its R² is {fit.r_squared:.3f}: the labels' mean would do better.")


def _entropy(*shares: float) -> float:
    """In nats, of one label."""
    return -sum(share * math.log(share) for share in shares if share > 0.0)
