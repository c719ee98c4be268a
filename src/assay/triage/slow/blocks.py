"""Whether one of two variants takes longer for a step, looked at after every block.

    block    both are started, and take turns:  A B B A A B B A,  or B first
    value    log (seconds of B / seconds of A), the mean over steps that both made, spikes clipped

Turns cancel what drifts, and what else the machine does. Processes of one and the same code still differ by a
few percent for as long as they live (where their memory lies): so each block starts new ones, and is one value.

The interval holds at all looks at once: it is what a t-test that bets on an effect of the size of the noise
cannot refute (a normal prior of the standardised effect, the right Haar prior of the noise: Lai 1976; Rouder
2009; Pérez-Ortiz 2024). So one may stop as soon as it decides, and is wrong in at most `error` of all
comparisons, however often one looks. It takes blocks to be normal; with heavier tails it is too wide.

Knows no processes: who measures is passed in.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from assay.base.shapes import Float64

PRIOR_VARIANCE = 4.0
"""The prior's, in standard deviations of a block. It moves when one may stop, not how often that is wrong."""
MAX_BLOCKS = 10_000
"""Where the search for how many would decide ends."""
CLIP_SIGMAS = 4.0
MAD_SIGMAS = 1.4826
"""A normal distribution's sigma in units of its median absolute deviation."""

BlockVerdict = Literal["slower", "faster", "same", "undecided"]


class CountedSteps(NamedTuple):
    """The steps of a run that count."""

    steps: tuple[int, ...]
    phases: Mapping[str, Float64[np.ndarray, "step"]]
    """Phase -> seconds in each."""


class Block(NamedTuple):
    """One run of each side, in turns."""

    log_ratio: float
    """Above 0 where B took longer."""
    a_s: Mapping[str, float]
    """Phase -> A's seconds per step, the mean over the steps that both made."""
    b_s: Mapping[str, float]
    device_s: float
    """What it cost: seconds, times devices."""


def block_of(a: CountedSteps, b: CountedSteps, *, device_s: float) -> Block:
    """Two runs beside one another, step by step. They have steps in common."""
    common = sorted(set(a.steps) & set(b.steps))
    assert common, (a.steps, b.steps)
    found = []
    for side in (a, b):
        indices = [side.steps.index(step) for step in common]
        found.append({phase: seconds[indices] for phase, seconds in side.phases.items()})
    a_s, b_s = (np.sum(list(phases.values()), axis=0) for phases in found)
    mean_a, mean_b = ({phase: float(seconds.mean()) for phase, seconds in of.items()} for of in found)
    return Block(_clipped_mean(np.log(b_s / a_s)), mean_a, mean_b, device_s)


def _clipped_mean(values: Float64[np.ndarray, "step"]) -> float:
    middle = float(np.median(values))
    width = CLIP_SIGMAS * MAD_SIGMAS * float(np.median(np.abs(values - middle)))
    # Where most are equal, the rest is no spike but all that there is to see.
    clipped = np.clip(values, middle - width, middle + width) if width > 0.0 else values
    return float(clipped.mean())


class BlockEffect(NamedTuple):
    """A mean with the interval that holds at all looks at once; infinite while there are too few."""

    mean: float
    low: float
    high: float


class BlockRules(NamedTuple):
    """When to stop."""

    least: float
    """The least change that matters, as a share: 0.03."""
    error: float
    """The chance to call equals different, or a change of at least `least` none."""
    most_blocks: int
    budget_s: float = math.inf
    """Device-seconds."""

    def allow(self, blocks: int, device_s: float) -> bool:
        """Whether another block, as dear as those before, is within them."""
        return blocks < self.most_blocks and device_s * (blocks + 1) / blocks <= self.budget_s


class BlockComparison(NamedTuple):
    """Where a comparison ended."""

    verdict: BlockVerdict
    blocks: tuple[Block, ...]
    effect: BlockEffect
    """The log ratio's."""

    def device_s(self) -> float:
        """What it cost."""
        return sum(block.device_s for block in self.blocks)

    def noise(self) -> float:
        """Standard deviation of a block's log ratio; 0 of one block."""
        ratios = [block.log_ratio for block in self.blocks]
        return float(np.std(ratios, ddof=1)) if len(ratios) > 1 else 0.0


def compare(
    measure: Callable[[], Block],
    rules: BlockRules,
    on_update: Callable[[BlockComparison], None] = lambda so_far: None,
) -> BlockComparison:
    """Measure blocks until the interval decides, or the next one would be more than is allowed."""
    blocks: list[Block] = []
    while True:
        blocks.append(measure())
        effect = effect_of([block.log_ratio for block in blocks], error=rules.error)
        found = BlockComparison(verdict_of(effect, rules.least), tuple(blocks), effect)
        on_update(found)
        if found.verdict != "undecided" or not rules.allow(len(blocks), found.device_s()):
            return found


def effect_of(values: Sequence[float], *, error: float) -> BlockEffect:
    """The mean of some values, and all means that they do not refute."""
    mean, width = float(np.mean(values)), interval_half_width(len(values), error=error)
    if math.isinf(width):
        return BlockEffect(mean, -math.inf, math.inf)
    half = width * float(np.std(values, ddof=1))
    return BlockEffect(mean, mean - half, mean + half)


def interval_half_width(number: int, *, error: float) -> float:
    """Half the interval's width in standard deviations of a value; infinite where so few decide nothing.

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
    """`same` where a change of `least` or more is refuted; a change, where none is and it seems to matter."""
    matters = math.log1p(least)
    if -matters < effect.low and effect.high < matters:
        return "same"
    if effect.low > 0.0 and effect.mean >= matters:
        return "slower"
    if effect.high < 0.0 and effect.mean <= -matters:
        return "faster"
    return "undecided"


def blocks_to_decide(effect: BlockEffect, noise: float, rules: BlockRules) -> int | None:
    """Blocks in all that would decide if mean and noise stay as they are; None where no number would.

    `noise`: standard deviation of a block's log ratio.
    """
    mean, matters = abs(effect.mean), math.log1p(rules.least)
    room = mean if mean >= matters else matters - mean
    for number in range(2, MAX_BLOCKS):
        if interval_half_width(number, error=rules.error) * noise < room:
            return number
    return None


class PhaseChange(NamedTuple):
    """What a phase takes per step on either side, seconds."""

    a_s: float
    b_s: float
    difference: BlockEffect


def measure_phase_changes(blocks: Sequence[Block], *, error: float) -> dict[str, PhaseChange]:
    """By phase; the chance of error is shared out among them."""
    names = list(dict.fromkeys(name for block in blocks for side in (block.a_s, block.b_s) for name in side))
    found = {}
    for name in names:
        a = [block.a_s.get(name, 0.0) for block in blocks]
        b = [block.b_s.get(name, 0.0) for block in blocks]
        difference = effect_of(np.subtract(b, a).tolist(), error=error / len(names))
        found[name] = PhaseChange(float(np.mean(a)), float(np.mean(b)), difference)
    return found
