"""Compare the step time of two variants by running them alternately."""

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from random import Random
from typing import NamedTuple

from assay.base.clock import Clock
from assay.records.side_by_side import SideBySide
from assay.triage.slow.blocks import (
    BlockComparison,
    BlockRules,
    CountedSteps,
    MeasuredBlock,
    block_of,
    compare,
    side_by_side,
)
from assay.workflows.ab_test.short_run import ShortRun, Variant
from assay.workflows.ab_test.variants import VariantPair

ROUNDS = 4
"""Intervals of each variant in a block: A B, B A, A B, B A."""
DISCARDED_STEPS = 2
"""Steps of an interval that do not count: the first whole one, and the one that its end cuts."""
MAX_STEPS_FACTOR = 10
"""A run ends by itself after this many times the steps of a block, in case the measuring process is killed."""


class BlockPlan(NamedTuple):
    """How a block is measured."""

    steps: int
    """Minimum number of measured steps of each variant."""
    warm_up: int
    """Warm-up steps before them."""
    workers: int
    sequential: bool = False
    """Run one variant after the other, if both do not fit at the same time."""

    def record_fields(self) -> dict[str, int]:
        """Return the plan as fields of `SideBySide` and `CommitBisection`."""
        return {"steps": self.steps, "warm_up": self.warm_up, "workers": self.workers, "apart": self.sequential}


def compare_variants(
    sides: VariantPair,
    plan: BlockPlan,
    rules: BlockRules,
    *,
    rng: Random,
    clock: Clock,
    on_block: Callable[[BlockComparison], None],
) -> SideBySide:
    """Run both variants and return the verdict. Raises `VariantError` if a variant does not run."""
    found = compare(lambda: measure_block(sides.a, sides.b, plan, rng=rng, clock=clock), rules, on_block)
    return side_by_side(
        found,
        rules,
        what=sides.kind,
        a=sides.a.name.removeprefix("A "),
        b=sides.b.name.removeprefix("B "),
        plan=plan.record_fields(),
        sources=sides.sources,
    )


def measure_block(a: Variant, b: Variant, plan: BlockPlan, *, rng: Random, clock: Clock) -> MeasuredBlock:
    """Measure one block: a run of each variant, in random order."""
    start_s, turn = clock.monotonic_s(), rng.choice((1, -1))
    order = (a, b)[::turn]
    if plan.sequential:
        counted = [*_alternate(order[:1], plan, clock), *_alternate(order[1:], plan, clock)]
    else:
        counted = _alternate(order, plan, clock)
    device_s = (clock.monotonic_s() - start_s) * plan.workers
    return block_of(*counted[::turn], device_s=device_s)


def _alternate(variants: Sequence[Variant], plan: BlockPlan, clock: Clock) -> list[CountedSteps]:
    """Start all variants and let them run alternately; a single one has one interval."""
    rounds = ROUNDS if len(variants) > 1 else 1
    per_turn = math.ceil(plan.steps / rounds) + DISCARDED_STEPS
    most_steps = MAX_STEPS_FACTOR * (plan.warm_up + rounds * per_turn)
    with ExitStack() as stack:
        runs = [
            stack.enter_context(ShortRun(variant, workers=plan.workers, most_steps=most_steps, clock=clock))
            for variant in variants
        ]
        for run in runs:
            run.advance(plan.warm_up)
            run.check_commit()
        target = max(run.num_steps() for run in runs)
        for number in range(rounds):
            target += per_turn
            for run in runs[:: (1, -1)[number % 2]]:
                run.advance(target)
        return [run.counted_steps(plan.warm_up) for run in runs]
