"""Compares the step time of two variants sequentially, block by block.

    block    one process of each variant, alternating:  A B B A A B B A,  or B first
    value    log (seconds of B / seconds of A), the mean over common steps, with spikes clipped

Alternation cancels drift and other load. Processes of the same code differ by a few percent for their whole life
(memory placement), so each block starts new processes and gives one value.

The interval is valid at all looks: it contains the effects that a t-test which bets on an effect of the size of the
noise cannot reject (normal prior of the standardized effect, right Haar prior of the noise: Lai 1976; Rouder 2009;
Pérez-Ortiz 2024). So one may stop as soon as it decides, with an error rate of at most `error` over all looks. It
assumes normal blocks; with heavier tails it is too wide.

Contains no process handling: the measurement is a parameter.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from assay.base.shapes import Float64
from assay.records.side_by_side import PhaseDifference, SideBySide, VariantBlock
from assay.statistics.robust import robust_sigma

PRIOR_VARIANCE = 4.0
"""In units of a block's variance. It affects when to stop, not the error rate."""
S_PER_HOUR = 3600.0
MAX_BLOCKS = 10_000
"""Upper bound of the search for the number of blocks."""
CLIP_SIGMAS = 4.0

BlockVerdict = Literal["slower", "faster", "same", "undecided"]


class CountedSteps(NamedTuple):
    """The measured steps of a run."""

    steps: tuple[int, ...]
    phases: Mapping[str, Float64[np.ndarray, "step"]]
    """Phase -> seconds of each step."""


class MeasuredBlock(NamedTuple):
    """One run of each variant, alternating."""

    log_ratio: float
    """Positive if B took longer."""
    a_s: Mapping[str, float]
    """Phase -> A's mean seconds per step over the common steps."""
    b_s: Mapping[str, float]
    device_s: float
    """Cost: seconds times devices."""


def block_of(a: CountedSteps, b: CountedSteps, *, device_s: float) -> MeasuredBlock:
    """Compare two runs step by step; they must have common steps."""
    common = sorted(set(a.steps) & set(b.steps))
    assert common, (a.steps, b.steps)
    found = []
    for side in (a, b):
        indices = [side.steps.index(step) for step in common]
        found.append({phase: seconds[indices] for phase, seconds in side.phases.items()})
    a_s, b_s = (np.sum(list(phases.values()), axis=0) for phases in found)
    mean_a, mean_b = ({phase: float(seconds.mean()) for phase, seconds in of.items()} for of in found)
    return MeasuredBlock(_clipped_mean(np.log(b_s / a_s)), mean_a, mean_b, device_s)


def _clipped_mean(values: Float64[np.ndarray, "step"]) -> float:
    middle, width = float(np.median(values)), CLIP_SIGMAS * robust_sigma(values)
    # Where most are equal, the rest is no spike but all that there is to see.
    clipped = np.clip(values, middle - width, middle + width) if width > 0.0 else values
    return float(clipped.mean())


class BlockEffect(NamedTuple):
    """A mean with an interval that is valid at all looks; infinite with too few values."""

    mean: float
    low: float
    high: float


class BlockRules(NamedTuple):
    """The stopping rules."""

    least: float
    """The smallest relevant change, as a share: 0.03."""
    error: float
    """Probability of reporting equal variants as different, or of missing a change of at least `least`."""
    most_blocks: int
    budget_s: float = math.inf
    """Device-seconds."""

    def allow(self, blocks: int, device_s: float) -> bool:
        return blocks < self.most_blocks and device_s * (blocks + 1) / blocks <= self.budget_s


class BlockComparison(NamedTuple):
    """The result of a comparison."""

    verdict: BlockVerdict
    blocks: tuple[MeasuredBlock, ...]
    effect: BlockEffect
    """The effect on the log ratio."""

    def device_s(self) -> float:
        return sum(block.device_s for block in self.blocks)

    def noise(self) -> float:
        """Return the standard deviation of a block's log ratio; 0 for one block."""
        ratios = [block.log_ratio for block in self.blocks]
        return float(np.std(ratios, ddof=1)) if len(ratios) > 1 else 0.0


def compare(
    measure: Callable[[], MeasuredBlock],
    rules: BlockRules,
    on_update: Callable[[BlockComparison], None] = lambda so_far: None,
) -> BlockComparison:
    """Measure blocks until the interval decides, or another block is not allowed."""
    blocks: list[MeasuredBlock] = []
    while True:
        blocks.append(measure())
        effect = effect_of([block.log_ratio for block in blocks], error=rules.error)
        found = BlockComparison(verdict_of(effect, rules.least), tuple(blocks), effect)
        on_update(found)
        if found.verdict != "undecided" or not rules.allow(len(blocks), found.device_s()):
            return found


def effect_of(values: Sequence[float], *, error: float) -> BlockEffect:
    """Return the mean of some values, with the interval of means that they do not reject."""
    mean, width = float(np.mean(values)), interval_half_width(len(values), error=error)
    if math.isinf(width):
        return BlockEffect(mean, -math.inf, math.inf)
    half = width * float(np.std(values, ddof=1))
    return BlockEffect(mean, mean - half, mean + half)


def interval_half_width(number: int, *, error: float) -> float:
    """Return half the interval's width in standard deviations of a value; infinite with too few values.

    The Bayes factor is (1 + n g)^(-1/2) [(1 + x) / (1 + x / (1 + n g))]^(n / 2), with g the prior's variance
    and x = t² / (n - 1); it reaches 1 / `error` at the ends of the interval.
    """
    if number < 2:
        return math.inf
    variance = 1.0 + number * PRIOR_VARIANCE
    needed = (math.sqrt(variance) / error) ** (2.0 / number)
    if needed >= variance:
        return math.inf
    x = (needed - 1.0) / (1.0 - needed / variance)
    return math.sqrt(x * (number - 1) / number)


def verdict_of(effect: BlockEffect, least: float) -> BlockVerdict:
    """Return `same` if a change of `least` or more is rejected; a direction if zero is rejected and the mean
    is relevant."""
    matters = math.log1p(least)
    if -matters < effect.low and effect.high < matters:
        return "same"
    if effect.low > 0.0 and effect.mean >= matters:
        return "slower"
    if effect.high < 0.0 and effect.mean <= -matters:
        return "faster"
    return "undecided"


def blocks_to_decide(effect: BlockEffect, noise: float, rules: BlockRules) -> int | None:
    """Return the total number of blocks that would decide with the current mean and noise; None if no number
    would.

    `noise`: standard deviation of a block's log ratio.
    """
    mean, matters = abs(effect.mean), math.log1p(rules.least)
    room = mean if mean >= matters else matters - mean
    for number in range(2, MAX_BLOCKS):
        if interval_half_width(number, error=rules.error) * noise < room:
            return number
    return None


def phase_differences(blocks: Sequence[MeasuredBlock], *, error: float) -> dict[str, PhaseDifference]:
    """Return the changes by phase; the error probability is divided among them."""
    names = list(dict.fromkeys(name for block in blocks for side in (block.a_s, block.b_s) for name in side))
    found = {}
    for name in names:
        a = [block.a_s.get(name, 0.0) for block in blocks]
        b = [block.b_s.get(name, 0.0) for block in blocks]
        mean, low, high = effect_of(np.subtract(b, a).tolist(), error=error / len(names))
        ends = (low, high) if math.isfinite(low) else (None, None)
        a_s, b_s = float(np.mean(a)), float(np.mean(b))
        found[name] = PhaseDifference(a_s=a_s, b_s=b_s, difference_s=mean, low_s=ends[0], high_s=ends[1])
    return found


def side_by_side(
    found: BlockComparison,
    rules: BlockRules,
    *,
    what: str,
    a: str,
    b: str,
    plan: Mapping[str, int],
    sources: dict[str, str],
) -> SideBySide:
    """Build the record. `plan`: how each block was measured (`BlockPlan`)."""
    phases = phase_differences(found.blocks, error=rules.error)
    return SideBySide.model_validate(
        {
            "what": what,
            "a": a,
            "b": b,
            "verdict": found.verdict,
            **ratio_fields(found.effect),
            "least": rules.least,
            "error": rules.error,
            "noise": found.noise() if len(found.blocks) > 1 else None,
            "phase": _phase(found, phases),
            "phases": phases,
            **plan,
            "device_hours": found.device_s() / S_PER_HOUR,
            "blocks": tuple(
                VariantBlock(ratio=math.exp(block.log_ratio), a_s=dict(block.a_s), b_s=dict(block.b_s))
                for block in found.blocks
            ),
            "blocks_needed": _blocks_needed(found, rules),
            "sources": sources,
        }
    )


def ratio_fields(effect: BlockEffect) -> dict[str, Any]:
    """Return a log ratio as `ratio`, `low`, `high`; None for an infinite end."""
    return {"ratio": math.exp(effect.mean), "low": _end(effect.low), "high": _end(effect.high)}


def _end(log_ratio: float) -> float | None:
    return math.exp(log_ratio) if math.isfinite(log_ratio) else None


def _phase(found: BlockComparison, phases: dict[str, PhaseDifference]) -> str | None:
    """Return the phase with most of the difference, among significant phases if there are any."""
    if found.verdict not in ("slower", "faster") or not phases:
        return None
    sign = 1.0 if found.verdict == "slower" else -1.0
    significant = [
        name
        for name, phase in phases.items()
        if phase.low_s is not None and phase.high_s is not None and min(sign * phase.low_s, sign * phase.high_s) > 0.0
    ]
    return max(significant or phases, key=lambda name: sign * phases[name].difference_s)


def _blocks_needed(found: BlockComparison, rules: BlockRules) -> int | None:
    if found.verdict != "undecided" or len(found.blocks) < 2:
        return None
    blocks = blocks_to_decide(found.effect, found.noise(), rules)
    return None if blocks is None else max(blocks, len(found.blocks) + 1)
