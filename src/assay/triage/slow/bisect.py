"""Bisects commits for a slowdown, with noisy measurements.

    GOOD   c0   c1   c2   ...   BAD            one of c0 ... BAD is the first with the other level

Every measurement is a block: a run of some commit and one of GOOD, as a log ratio. It is 0 before the culprit and
the whole difference from there on, plus noise. Each commit's posterior probability of being the culprit has a
closed form, with difference and noise integrated out (flat and Jeffreys' priors of a linear model). The next block
measures the commit that halves the posterior. It ends when one culprit has a probability of 1 - `error` (Horstein
1963; Waeber 2013). So no single block decides, and an unlucky measurement is repeated.

Commits that do not run provide no information; commits that only they could separate stay together.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from assay.base.shapes import Bool, Float64
from assay.records.commit_bisection import CommitBisection, SkippedCommit, SuspectCommit
from assay.triage.slow.blocks import (
    S_PER_HOUR,
    BlockComparison,
    BlockEffect,
    BlockRules,
    MeasuredBlock,
    effect_of,
    ratio_fields,
)


class CannotRun(Exception):  # noqa: N818
    """A commit cannot be measured; the message has the reason."""


class Bisected(NamedTuple):
    """The result of a bisection."""

    culprits: tuple[int, ...]
    """Index of the most probable commit after GOOD; several if only commits that do not run could separate
    them."""
    probability: float
    """Probability that it is one of these."""
    posterior: Float64[np.ndarray, "commit"]
    log_ratios: tuple[float, ...]
    """Log ratios of the blocks from the culprit on."""
    skipped: dict[int, str]
    """Commit that does not run -> reason."""
    is_decided: bool


class StepPosterior:
    """Posterior of the culprit."""

    def __init__(self, is_candidate: Bool[np.ndarray, "commit"], of_bad: Sequence[float]) -> None:
        """`is_candidate`: whether a commit changes anything, BAD last; `of_bad`: log ratios of BAD to GOOD."""
        number = len(is_candidate)
        self._log_prior = np.where(is_candidate, 0.0, -math.inf)
        self._ratios: list[list[float]] = [[] for _ in range(number)]
        self._ratios[-1] = list(of_bad)
        self._is_measurable = np.ones(number, bool)

    def add(self, commit: int, log_ratio: float) -> None:
        self._ratios[commit].append(log_ratio)

    def skip(self, commit: int) -> None:
        self._is_measurable[commit] = False

    def probabilities(self) -> Float64[np.ndarray, "commit"]:
        counts = np.array([len(some) for some in self._ratios], np.float64)
        sums = np.array([sum(some) for some in self._ratios])
        squares = sum(ratio * ratio for some in self._ratios for ratio in some)
        after, sum_after = counts[::-1].cumsum()[::-1], sums[::-1].cumsum()[::-1]
        residual = np.maximum(squares - sum_after**2 / after, 1e-12 * squares + 1e-300)
        log = self._log_prior - 0.5 * np.log(after) - 0.5 * (counts.sum() - 1.0) * np.log(residual)
        weights = np.exp(log - log.max())
        return np.asarray(weights / weights.sum())

    def groups(self) -> list[list[int]]:
        """Return candidate commits, grouped if no commit that runs separates them."""
        found: list[list[int]] = [[]]
        for commit, prior in enumerate(self._log_prior):
            if prior == 0.0:
                found[-1].append(commit)
            if self._is_measurable[commit]:
                found.append([])
        return [group for group in found if group]

    def next_commit(self) -> int | None:
        """Return the next commit to measure; None if no measurement is informative."""
        before = self.probabilities().cumsum()[:-1]
        is_informative = self._is_measurable[:-1] & (before > 0.0) & (before < 1.0)
        if not is_informative.any():
            return None
        return int(np.where(is_informative, np.abs(before - 0.5), np.inf).argmin())

    def log_ratios_from(self, commit: int) -> tuple[float, ...]:
        return tuple(ratio for some in self._ratios[commit:] for ratio in some)


def bisect_commits(
    is_candidate: Bool[np.ndarray, "commit"],
    of_bad: Sequence[float],
    measure: Callable[[int], float],
    *,
    error: float,
    can_continue: Callable[[], bool],
    on_update: Callable[[Bisected], None] = lambda so_far: None,
) -> Bisected:
    """Measure until one culprit, or an inseparable group, has a probability of 1 - `error`.

    `measure` returns the log ratio of a block of a commit (by index) relative to GOOD, or raises `CannotRun`.
    `can_continue` tells whether another block is allowed.
    """
    known, skipped = StepPosterior(is_candidate, of_bad), dict[int, str]()
    while True:
        found = _so_far(known, skipped, error=error)
        on_update(found)
        commit = known.next_commit()
        if found.is_decided or commit is None or not can_continue():
            return found
        try:
            known.add(commit, measure(commit))
        except CannotRun as reason:
            known.skip(commit)
            skipped[commit] = str(reason)


def _so_far(known: StepPosterior, skipped: dict[int, str], *, error: float) -> Bisected:
    posterior = known.probabilities()
    groups = known.groups()
    masses = [float(posterior[group].sum()) for group in groups]
    best = int(np.argmax(masses))
    return Bisected(
        culprits=tuple(groups[best]), probability=masses[best], posterior=posterior,
        log_ratios=known.log_ratios_from(groups[best][-1]), skipped=dict(skipped),
        is_decided=masses[best] >= 1.0 - error,
    )  # fmt: skip


MIN_PROBABILITY = 0.01
"""Unmeasured commits with at least this probability are listed."""


class CommitLine(NamedTuple):
    """The commits after GOOD up to BAD, oldest first."""

    good: str
    commits: tuple[str, ...]
    subjects: tuple[str, ...]
    unchanged: int
    """Number of commits that change nothing in the package."""


def no_bisection(
    ends: BlockComparison, line: CommitLine, rules: BlockRules, plan: Mapping[str, int], sources: dict[str, str]
) -> CommitBisection:
    """Build the record if GOOD and BAD do not differ, or not measurably."""
    verdict = "no_difference" if ends.verdict == "same" else "undecided"
    found = {"verdict": verdict, "culprits": (), "probability": None, "suspects": (), "skipped": ()}
    return _record(line, rules, plan, sources, ends.blocks, ends.effect, found)


def bisection(
    found: Bisected,
    blocks: Mapping[int, Sequence[MeasuredBlock]],
    line: CommitLine,
    rules: BlockRules,
    plan: Mapping[str, int],
    sources: dict[str, str],
) -> CommitBisection:
    """Build the record of a difference. `blocks`: commit index -> its blocks relative to GOOD."""
    effect = effect_of(found.log_ratios, error=rules.error)
    verdict = ("found" if len(found.culprits) == 1 else "several") if found.is_decided else "undecided"
    values = {
        "verdict": verdict,
        "culprits": tuple(line.commits[index] for index in found.culprits),
        "probability": found.probability,
        "suspects": _suspects(found, blocks, line),
        "skipped": tuple(
            SkippedCommit(commit=line.commits[index], subject=line.subjects[index], because=why)
            for index, why in found.skipped.items()
        ),
    }
    return _record(line, rules, plan, sources, [block for some in blocks.values() for block in some], effect, values)


def _record(
    line: CommitLine,
    rules: BlockRules,
    plan: Mapping[str, int],
    sources: dict[str, str],
    blocks: Sequence[MeasuredBlock],
    effect: BlockEffect,
    found: Mapping[str, Any],
) -> CommitBisection:
    fields = {
        "least": rules.least, "error": rules.error, "good": line.good, "bad": line.commits[-1],
        "commits": len(line.commits), "unchanged": line.unchanged, "blocks": len(blocks),
        "device_hours": sum(block.device_s for block in blocks) / S_PER_HOUR, "sources": sources, **plan,
        **ratio_fields(effect), **found,
    }  # fmt: skip
    return CommitBisection.model_validate(fields)


def _suspects(
    found: Bisected, blocks: Mapping[int, Sequence[MeasuredBlock]], line: CommitLine
) -> tuple[SuspectCommit, ...]:
    suspects = []
    for index in np.argsort(-found.posterior, kind="stable").tolist():
        ratios = [block.log_ratio for block in blocks.get(index, ())]
        if ratios or found.posterior[index] >= MIN_PROBABILITY:
            suspects.append(
                SuspectCommit(
                    commit=line.commits[index], subject=line.subjects[index],
                    probability=float(found.posterior[index]),
                    ratio=math.exp(float(np.mean(ratios))) if ratios else None, blocks=len(ratios),
                )
            )  # fmt: skip
    return tuple(suspects)
