"""`assay triage slow --ab` and `assay triage bisect`: what makes a step slower, by running it."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from assay.base.errors import ConfigError
from assay.cli.given import FILE, is_given
from assay.cli.triage.given import JSON

if TYPE_CHECKING:
    from assay.triage.slow.blocks import BlockRules
    from assay.workflows.ab_test.compare import BlockPlan

LEAST = 0.03
"""The least change that is worth its runs, unless --least says another."""
MOST_BLOCKS_AB, MOST_BLOCKS_BISECT = 40, 200
S_PER_MINUTE = 60.0


def measuring_options(command: click.decorators.FC) -> click.decorators.FC:
    """How blocks are made, and when to stop."""
    options = (
        click.option("--workers", default=1, show_default=True, help="Ranks of each run."),
        click.option(
            "--steps",
            type=click.IntRange(min=4),
            default=40,
            show_default=True,
            help="Steps of each run that count.",
        ),
        click.option(
            "--warm-up",
            type=click.IntRange(min=1),
            default=10,
            show_default=True,
            help="Steps of each run before those.",
        ),
        click.option(
            "--apart", is_flag=True, help="One run after the other: both at once have no room. Noisier."
        ),
        click.option(
            "--error",
            type=click.FloatRange(0.0, 0.5, min_open=True, max_open=True),
            default=0.05,
            show_default=True,
            help="The chance of a wrong verdict, however often it is looked at.",
        ),
        click.option(
            "--most-blocks",
            type=click.IntRange(min=1),
            help=f"Blocks after which it ends undecided; by default {MOST_BLOCKS_AB}, of bisect "
            f"{MOST_BLOCKS_BISECT}.",
        ),
        click.option(
            "--budget",
            type=click.FloatRange(min=0.0, min_open=True),
            metavar="MINUTES",
            help="Device-minutes after which it ends undecided; one block is made in any case.",
        ),
        click.option("--seed", default=0, show_default=True, help="Decides which run of a block begins."),
    )
    for option in reversed(options):
        command = option(command)
    return command


MEASURING = ("workers", "steps", "warm_up", "apart", "error", "most_blocks", "budget", "seed")
"""The names of these options."""


def refuse_given(context: click.Context, names: tuple[str, ...], why: str) -> None:
    """Raise `ConfigError` for options that mean nothing here."""
    options = {option.name: option.opts[0] for option in context.command.params}
    given = [options[name] for name in names if is_given(context, name)]
    if given:
        raise ConfigError(f"{', '.join(given)}: {why}.")


def compare_and_print(
    a: str, b: str, recipes: tuple[Path, ...], *, least: float | None, as_json: bool, **measuring: Any
) -> None:
    """Run A and B in turns until it is clear which is slower."""
    from random import Random

    from assay.base.clock import SystemClock
    from assay.reporting.terminal.triage import print_side_by_side
    from assay.triage.slow.compared import change_text
    from assay.workflows.ab_test.compare import compare_sides
    from assay.workflows.ab_test.sides import sides_of

    if len(recipes) > 1:
        raise ConfigError(f"--ab: one RECIPE is run, and {len(recipes)} files are given.")
    plan, rules = _plan(measuring), _rules(measuring, least, MOST_BLOCKS_AB)
    with _sigterm_interrupts(), sides_of(a, b, next(iter(recipes), None)) as sides:
        if sides.sources["A"] == sides.sources["B"]:
            click.echo("A and B are the same: this says what the machine does, and nothing else", err=True)
        found = compare_sides(
            sides,
            plan,
            rules,
            rng=Random(measuring["seed"]),
            clock=SystemClock(),
            say=lambda it: click.echo(
                f"block {len(it.blocks)}: B takes {change_text(it.effect)} than A", err=True
            ),
        )
    if as_json:
        click.echo(found.to_json())
    else:
        print_side_by_side(found)


@click.command()
@click.argument("good")
@click.argument("bad")
@click.argument("recipe", type=FILE)
@click.option(
    "--least", default=LEAST, show_default=True, help="The least change from GOOD to BAD, as a share."
)
@measuring_options
@JSON
def bisect(good: str, bad: str, recipe: Path, least: float, as_json: bool, **measuring: Any) -> None:
    """Find the commit between GOOD and BAD from which on a step of RECIPE takes longer, or less.

    Each block runs a commit beside GOOD, in turns, from a checkout of its own. That BAD differs is seen first;
    then the commit is measured that tells most, until one has a probability of 1 - --error / 2. Commits that do
    not run are passed over. The runs are real; nothing of them enters the home."""
    from random import Random

    from assay.base.clock import SystemClock
    from assay.reporting.terminal.triage import print_bisection
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
            say=lambda text: click.echo(text, err=True),
        )
    if as_json:
        click.echo(found.to_json())
    else:
        print_bisection(found)


@contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    """A scheduler's SIGTERM ends it as Ctrl-C does: runs leave, checkouts are removed."""

    def interrupt(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _plan(given: dict[str, Any]) -> "BlockPlan":
    from assay.workflows.ab_test.compare import BlockPlan

    return BlockPlan(given["steps"], given["warm_up"], given["workers"], given["apart"])


def _rules(given: dict[str, Any], least: float | None, most_blocks: int) -> "BlockRules":
    import math

    from assay.triage.slow.blocks import BlockRules

    least = LEAST if least is None else least
    if not 0.0 < least < 1.0:
        raise ConfigError(f"--least {least:g}: expected a share of the step between 0 and 1, e.g. {LEAST}.")
    budget = given["budget"]
    budget_s = math.inf if budget is None else budget * S_PER_MINUTE
    return BlockRules(least, given["error"], given["most_blocks"] or most_blocks, budget_s)
