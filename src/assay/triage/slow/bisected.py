"""Builds the record of a bisection."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from assay.base.units import percent_text
from assay.records.commit_bisection import CommitBisection, SkippedCommit, SuspectCommit
from assay.triage.slow.bisect import Bisected
from assay.triage.slow.blocks import Block, BlockComparison, BlockRules, effect_of
from assay.triage.slow.compared import S_PER_HOUR, change_text, ratio_fields

MIN_PROBABILITY = 0.01
"""Unmeasured commits with at least this probability are listed."""


class CommitLine(NamedTuple):
    """The commits after GOOD up to BAD, oldest first."""

    good: str
    commits: tuple[str, ...]
    subjects: tuple[str, ...]
    unchanged: int
    """Number of commits that change nothing in the package."""

    def text(self, index: int) -> str:
        return f"{self.commits[index][:10]} ({self.subjects[index]})"


def no_bisection(
    ends: BlockComparison, line: CommitLine, rules: BlockRules, plan: Mapping[str, int], sources: dict[str, str]
) -> CommitBisection:
    """Build the record if GOOD and BAD do not differ, or not measurably."""
    is_same = ends.verdict == "same"
    measured = f"a step of BAD takes {change_text(ends.effect)} than one of GOOD"
    conclusion = (
        f"a change of {rules.least:.1%} or more is ruled out, so there is nothing to look for between them"
        if is_same
        else "that is neither a change nor none yet, and no commit between them was measured"
    )
    return CommitBisection.model_validate(
        {
            **_common(line, rules, plan, sources, ends.blocks),
            **ratio_fields(ends.effect),
            "verdict": "no_difference" if is_same else "undecided",
            "because": f"{measured}: {conclusion}.",
            "culprits": (),
            "probability": None,
            "suspects": (),
            "skipped": (),
            "next": (
                "look for the cause elsewhere: the machine, the data, or what is installed."
                if is_same
                else "raise --most-blocks, --budget or --steps, or measure on a quieter machine."
            ),
        }
    )


def bisection(
    found: Bisected,
    blocks: Mapping[int, Sequence[Block]],
    line: CommitLine,
    rules: BlockRules,
    plan: Mapping[str, int],
    sources: dict[str, str],
) -> CommitBisection:
    """Build the record of a difference. `blocks`: commit index -> its blocks relative to GOOD."""
    effect = effect_of(found.log_ratios, error=rules.error)
    verdict = ("found" if len(found.culprits) == 1 else "several") if found.is_decided else "undecided"
    return CommitBisection.model_validate(
        {
            **_common(line, rules, plan, sources, [block for some in blocks.values() for block in some]),
            **ratio_fields(effect),
            "verdict": verdict,
            "because": _reason(found, line, change_text(effect)),
            "culprits": tuple(line.commits[index] for index in found.culprits),
            "probability": found.probability,
            "suspects": _suspects(found, blocks, line),
            "skipped": tuple(
                SkippedCommit(commit=line.commits[index], subject=line.subjects[index], because=why)
                for index, why in found.skipped.items()
            ),
            "next": _next(found, line),
        }
    )


def suspect_text(found: Bisected, line: CommitLine) -> str:
    """Return the most probable commit so far."""
    return f"{_culprits(found, line)} with probability {percent_text(found.probability)}"


def _culprits(found: Bisected, line: CommitLine) -> str:
    first, *others = found.culprits
    if not others:
        return line.text(first)
    return f"one of {len(found.culprits)} commits, {line.text(first)} to {line.text(others[-1])},"


def _common(
    line: CommitLine,
    rules: BlockRules,
    plan: Mapping[str, int],
    sources: dict[str, str],
    blocks: Sequence[Block],
) -> dict[str, Any]:
    return {
        "least": rules.least,
        "error": rules.error,
        "good": line.good,
        "bad": line.commits[-1],
        "commits": len(line.commits),
        "unchanged": line.unchanged,
        "blocks": len(blocks),
        "device_hours": sum(block.device_s for block in blocks) / S_PER_HOUR,
        "sources": sources,
        **plan,
    }


def _suspects(found: Bisected, blocks: Mapping[int, Sequence[Block]], line: CommitLine) -> tuple[SuspectCommit, ...]:
    suspects = []
    for index in np.argsort(-found.posterior, kind="stable").tolist():
        ratios = [block.log_ratio for block in blocks.get(index, ())]
        if ratios or found.posterior[index] >= MIN_PROBABILITY:
            suspects.append(
                SuspectCommit(
                    commit=line.commits[index],
                    subject=line.subjects[index],
                    probability=float(found.posterior[index]),
                    ratio=math.exp(float(np.mean(ratios))) if ratios else None,
                    blocks=len(ratios),
                )
            )
    return tuple(suspects)


def _reason(found: Bisected, line: CommitLine, change: str) -> str:
    if not found.is_decided:
        return (
            "BAD differs from GOOD, but no commit has enough of the probability yet; the most has "
            f"{suspect_text(found, line)}."
        )
    apart = "" if len(found.culprits) == 1 else " All but the last do not run."
    return (
        f"from {_culprits(found, line)} on, a step takes {change} than before (probability "
        f"{percent_text(found.probability)}).{apart}"
    )


def _next(found: Bisected, line: CommitLine) -> str:
    if not found.is_decided:
        return "raise --most-blocks, --budget or --steps: what was measured so far has to be measured anew."
    if len(found.culprits) == 1:
        commit = line.commits[found.culprits[0]][:10]
        return f"'git show {commit}'; 'assay triage slow --ab {commit}^ {commit} RECIPE' says in which phase."
    return "read these commits; or make those that do not run work, with what broke them undone."
