"""Runs two variants in turns until it is clear which takes longer for a step."""

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from random import Random
from typing import NamedTuple

from assay.base.clock import Clock
from assay.records.side_by_side import SideBySide
from assay.triage.slow.blocks import Block, BlockComparison, BlockRules, CountedSteps, block_of, compare
from assay.triage.slow.compared import side_by_side
from assay.workflows.ab_test.short_run import ShortRun, Variant
from assay.workflows.ab_test.variants import VariantPair

ROUNDS = 4
"""Turns of each side in a block: A B, B A, A B, B A."""
DISCARDED_STEPS = 2
"""Steps of each turn that do not count: the first whole one, and the one that its end cuts."""
MAX_STEPS_FACTOR = 10
"""So many times the steps of a block, a run ends by itself: should who measures it be killed."""


class BlockPlan(NamedTuple):
    """How each block is made."""

    steps: int
    """Those of each side that count, at least."""
    warm_up: int
    """Steps before those."""
    workers: int
    sequential: bool = False
    """One run after the other, where there is no room for both at once."""


def compare_variants(
    sides: VariantPair,
    plan: BlockPlan,
    rules: BlockRules,
    *,
    rng: Random,
    clock: Clock,
    on_block: Callable[[BlockComparison], None],
) -> SideBySide:
    """Real runs, and the verdict. Raises `VariantError` where a side does not run."""
    found = compare(lambda: measure_block(sides.a, sides.b, plan, rng=rng, clock=clock), rules, on_block)
    return side_by_side(
        found,
        rules,
        what=sides.kind,
        a=sides.a.name.removeprefix("A "),
        b=sides.b.name.removeprefix("B "),
        plan=plan._asdict(),
        sources=sides.sources,
    )


def measure_block(a: Variant, b: Variant, plan: BlockPlan, *, rng: Random, clock: Clock) -> Block:
    """One run of each; it is left to chance which begins."""
    start_s, turn = clock.monotonic_s(), rng.choice((1, -1))
    order = (a, b)[::turn]
    if plan.sequential:
        counted = [*_alternate(order[:1], plan, clock), *_alternate(order[1:], plan, clock)]
    else:
        counted = _alternate(order, plan, clock)
    device_s = (clock.monotonic_s() - start_s) * plan.workers
    return block_of(*counted[::turn], device_s=device_s)


def _alternate(variants: Sequence[Variant], plan: BlockPlan, clock: Clock) -> list[CountedSteps]:
    """Start all, and let them take turns; one alone has one turn."""
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
        return [run.counted(plan.warm_up) for run in runs]
