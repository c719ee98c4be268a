"""`assay triage slow --ab` and `assay triage bisect`: measure what makes a step slower, by running it."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from assay.base.errors import ConfigError
from assay.cli.command import Command
from assay.cli.parameters import FILE, combined, is_on_command_line, json_option, seed_option
from assay.cli.triage.parameters import print_result

if TYPE_CHECKING:
    from assay.triage.slow.blocks import BlockRules
    from assay.workflows.ab_test.compare import BlockPlan

LEAST = 0.03
"""Default smallest change to detect, as a share of the step time."""
MOST_BLOCKS_AB, MOST_BLOCKS_BISECT = 40, 200
S_PER_MINUTE = 60.0


measuring_options = combined(
    click.option("--workers", default=1, help="Number of ranks of each run."),
    click.option("--steps", type=click.IntRange(min=4), default=40, help="Number of measured steps of each run."),
    click.option("--warm-up", type=click.IntRange(min=1), default=10, help="Number of warm-up steps of each run."),
    click.option(
        "--sequential", is_flag=True, help="Run one after the other, if both do not fit at the same time; noisier."
    ),
    click.option(
        "--error",
        type=click.FloatRange(0.0, 0.5, min_open=True, max_open=True),
        default=0.05,
        help="Probability of a wrong verdict, however often the blocks are tested.",
    ),
    click.option(
        "--most-blocks",
        type=click.IntRange(min=1),
        help=f"Blocks after which it ends undecided; by default {MOST_BLOCKS_AB}, of bisect {MOST_BLOCKS_BISECT}.",
    ),
    click.option(
        "--budget",
        type=click.FloatRange(min=0.0, min_open=True),
        metavar="MINUTES",
        help="Device-minutes after which it ends undecided; at least one block runs.",
    ),
    seed_option("the order of runs in a block"),
)
"""The options about blocks and when to stop."""
MEASURING = ("workers", "steps", "warm_up", "sequential", "error", "most_blocks", "budget", "seed")
"""Names of the measuring options."""


def reject_options(context: click.Context, names: tuple[str, ...], why: str) -> None:
    """Raise `ConfigError` if one of these options is set."""
    flags = {option.name: option.opts[0] for option in context.command.params}
    options = [flags[name] for name in names if is_on_command_line(context, name)]
    if options:
        raise ConfigError(f"{', '.join(options)}: {why}.")


def compare_and_print(
    a: str, b: str, recipes: tuple[Path, ...], *, least: float | None, as_json: bool, **measuring: Any
) -> None:
    """Run A and B alternately until it is clear whether B is slower, and print the result."""
    from random import Random

    from assay.base.clock import SystemClock
    from assay.reporting.views.triage_statements import longer_text
    from assay.triage.slow.blocks import ratio_fields
    from assay.workflows.ab_test.compare import compare_variants
    from assay.workflows.ab_test.variants import variant_pair

    if len(recipes) > 1:
        raise ConfigError(f"--ab: one RECIPE is run, and {len(recipes)} files are given.")
    plan, rules = _plan(measuring), _rules(measuring, least, MOST_BLOCKS_AB)
    with _sigterm_interrupts(), variant_pair(a, b, next(iter(recipes), None)) as sides:
        if sides.sources["A"] == sides.sources["B"]:
            click.echo("A and B are the same: this only measures the noise of the machine", err=True)
        found = compare_variants(
            sides,
            plan,
            rules,
            rng=Random(measuring["seed"]),
            clock=SystemClock(),
            on_block=lambda it: click.echo(
                f"block {len(it.blocks)}: B takes {longer_text(**ratio_fields(it.effect))} than A", err=True
            ),
        )
    print_result(found, as_json=as_json)


_BISECT_SECTIONS = {
    "Runs": MEASURING,
}


@click.command(cls=Command, sections=_BISECT_SECTIONS)
@click.argument("good")
@click.argument("bad")
@click.argument("recipe", type=FILE)
@click.option("--effect", "least", default=LEAST, help="Smallest change from GOOD to BAD to detect, as a share.")
@measuring_options
@json_option
def bisect(good: str, bad: str, recipe: Path, least: float, as_json: bool, **measuring: Any) -> None:
    """Find the commit between GOOD and BAD that made a step of RECIPE slower or faster.

    Each block runs a commit and GOOD alternately, from separate checkouts. First the difference of BAD is
    confirmed; then the most informative commit is measured, until one has a probability of 1 - --error / 2.
    Commits that do not run are skipped. The runs are real, and nothing of them is recorded in the home.
    """
    from random import Random

    from assay.base.clock import SystemClock
    from assay.workflows.ab_test.bisect import bisect_range, commit_range
    from assay.workflows.ab_test.checkouts import CodeRepository

    with _sigterm_interrupts():
        found = bisect_range(
            commit_range(CodeRepository.found(), good, bad),
            recipe,
            _plan(measuring),
            _rules(measuring, least, MOST_BLOCKS_BISECT),
            rng=Random(measuring["seed"]),
            clock=SystemClock(),
            on_message=lambda text: click.echo(text, err=True),
        )
    print_result(found, as_json=as_json)


@contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C: runs stop and checkouts are removed."""

    def interrupt(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _plan(options: dict[str, Any]) -> "BlockPlan":
    from assay.workflows.ab_test.compare import BlockPlan

    return BlockPlan(options["steps"], options["warm_up"], options["workers"], options["sequential"])


def _rules(options: dict[str, Any], least: float | None, most_blocks: int) -> "BlockRules":
    import math

    from assay.triage.slow.blocks import BlockRules

    least = LEAST if least is None else least
    if not 0.0 < least < 1.0:
        raise ConfigError(f"--effect {least:g}: expected a share of the step between 0 and 1, e.g. {LEAST}.")
    budget = options["budget"]
    budget_s = math.inf if budget is None else budget * S_PER_MINUTE
    return BlockRules(least, options["error"], options["most_blocks"] or most_blocks, budget_s)
