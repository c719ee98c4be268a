"""What a gain means in other terms: wrong predictions, probability of the right class, change relative to the baseline.

A gain in log-likelihood comes from better ranking or from better calibration. Calibration is worth less, because a
temperature fitted on held-out rows gives it without training. The ranking and accuracy of the same rows are therefore
reported too, if the predictions allow it.
"""

import math
from collections.abc import Iterator

import numpy as np

from assay.decision.config import CampaignConfig, PredictionsBenchmark
from assay.decision.facts import BenchmarkFacts, Facts
from assay.decision.sentences import interval_words
from assay.statistics.effect import estimate_of

_BASES = {"nats": math.e, "bits": 2.0}
_PER = 1000
"""Rows in which wrong predictions are counted."""


def relative_words(facts: Facts) -> str:
    """` (+4.0% relative to the baseline)`; empty if the baseline is 0."""
    primary = [facts.benchmarks[name] for name in facts.breadth.of_benchmarks]
    scores = [np.average(benchmark.baseline, axis=1, weights=benchmark.weights).mean() for benchmark in primary]
    baseline = abs(float(np.mean(scores)))
    if baseline < 1e-9:
        return ""
    return f" ({100 * float(facts.composite.mean) / baseline:+.1f}% relative to the baseline)"


def meaning(config: CampaignConfig, facts: Facts) -> Iterator[str]:
    """Return sentences about the gain; none if the unit is clear and the rows have no other scores."""
    right = _of_the_same_rows(config, facts, "correct")
    if right is not None and right.role != "primary":
        yield _error_counts(right)
    size, _, per = facts.unit.partition(" ")
    if size in _BASES:
        factor = _BASES[size] ** float(facts.composite.mean)
        yield f"{per[:1].upper()}{per[1:]}, the probability of what is right is multiplied by {factor:.3g}."
    ranking = _of_the_same_rows(config, facts, "ranking")
    if size in _BASES and ranking is not None and _is_seen(ranking):
        yield f"It is more than calibration: the ranking of the same rows gains {_words(ranking)}."


def calibration_alone(config: CampaignConfig, facts: Facts) -> Iterator[str]:
    """Return a sentence if a gain in likelihood does not appear in the ranking of the same rows."""
    ranking = _of_the_same_rows(config, facts, "ranking")
    if facts.unit.partition(" ")[0] in _BASES and ranking is not None and not _is_seen(ranking):
        yield (
            f"The gain is in likelihood, and not seen in ranking ({_words(ranking)}): it may be calibration "
            "alone, which a temperature fitted on held-out rows gives without training."
        )


def not_moved(facts: Facts) -> Iterator[str]:
    """Return a sentence that lists the other scores without a difference."""
    others = [benchmark for benchmark in (*facts.benchmarks.values(), *facts.secondary) if benchmark.role == "other"]
    still = [
        f"{benchmark.name} ({_words(benchmark)})"
        for benchmark in others
        if not _is_seen(benchmark) and not _is_worse(benchmark)
    ]
    if still:
        yield f"No difference is seen on {', '.join(still)}."


def _of_the_same_rows(config: CampaignConfig, facts: Facts, score: str) -> BenchmarkFacts | None:
    """Return another score of the rows of the first primary benchmark of predictions."""
    predictions = [benchmark for benchmark in config.benchmarks if isinstance(benchmark, PredictionsBenchmark)]
    first = next((benchmark for benchmark in predictions if benchmark.name in config.rule.primary), None)
    if first is None:
        return None
    names = [benchmark.name for benchmark in predictions if benchmark.score == score and benchmark.where == first.where]
    names += [
        benchmark.name for benchmark in config.secondary if benchmark.score == score and benchmark.where == first.where
    ]
    known = {**facts.benchmarks, **{benchmark.name: benchmark for benchmark in facts.secondary}}
    return next((known[name] for name in names if name in known), None)


def _error_counts(right: BenchmarkFacts) -> str:
    before, after = (
        _PER * (1.0 - float(np.average(scores, axis=1, weights=right.weights).mean()))
        for scores in (right.baseline, right.candidate)
    )
    if np.array_equal(right.baseline, right.candidate):
        return f"In wrong answers: from {before:.0f} to {after:.0f} of {_PER:,} rows, the same row by row."
    found = estimate_of(right.effect)
    change = _rows_text(-found.value)
    ends = (
        ""
        if found.low is None or found.high is None
        else f" [{found.confidence:.0%}: {_rows_text(-found.high)} to {_rows_text(-found.low)}]"
    )
    return f"In wrong answers: from {before:.0f} to {after:.0f} of {_PER:,} rows, {change}{ends}."


def _rows_text(share: float) -> str:
    """`0.0123` -> `+12.3`, in rows of a thousand; zero has no sign."""
    text = f"{_PER * share:+.1f}"
    return text[1:] if float(text) == 0.0 else text


def _is_seen(benchmark: BenchmarkFacts) -> bool:
    low = estimate_of(benchmark.effect).low
    return low is not None and low > 0.0


def _is_worse(benchmark: BenchmarkFacts) -> bool:
    high = estimate_of(benchmark.effect).high
    return high is not None and high < 0.0


def _words(benchmark: BenchmarkFacts) -> str:
    return interval_words(estimate_of(benchmark.effect), benchmark.unit)
