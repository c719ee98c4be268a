"""`assay triage case`: the notebook of one investigation."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from assay.base.clock import SystemClock
from assay.base.errors import ConfigError
from assay.cli.given import SOURCE_OR_RUN, CommandGroup, given_home
from assay.cli.triage.given import JSON
from assay.cli.triage.symptoms import symptoms_of

if TYPE_CHECKING:
    from assay.records.case import Case


@click.group(cls=CommandGroup)
def case() -> None:
    """Keep the notebook of one investigation: symptoms, hypotheses, what each predicts, and what came of it."""


@case.command("open")
@click.argument("name")
@click.argument("sources", nargs=-1, type=SOURCE_OR_RUN, metavar="[RUN|LOG]...")
@JSON
def open_(name: str, sources: tuple[Path | str, ...], as_json: bool) -> None:
    """Begin case NAME with the symptoms of runs (RUN, or RUN@STEP where it looked odd) and logs; without any,
    of all failures on record."""
    from assay.records.case import Case
    from assay.store.triage.cases import open_case, refuse_taken

    home = given_home()
    refuse_taken(home, name)
    begun = Case(name=name, opened_s=SystemClock().now_s(), symptoms=symptoms_of(sources))
    open_case(home, begun)
    _print(begun, as_json)


@case.command()
@click.argument("name")
@click.option("--hypothesis", required=True, metavar="TEXT", help="What may be the cause, in a sentence.")
@click.option(
    "--predicts",
    multiple=True,
    metavar="COMMAND",
    help="A command of assay that only asks, e.g. 'replay lm-0312 --step 7 --audit-ops'; may be repeated.",
)
@click.option(
    "--expect",
    multiple=True,
    metavar="OUTCOME",
    help="Of each --predicts: 'exit 1', or PATH=VALUE or PATH!=VALUE of its JSON, e.g. "
    "operators.finding.operator=aten::sum; * in a path is any element.",
)
@click.option("--vote", metavar="WHO", help="Who believes it.")
@JSON
def add(
    name: str,
    hypothesis: str,
    predicts: tuple[str, ...],
    expect: tuple[str, ...],
    vote: str | None,
    as_json: bool,
) -> None:
    """Add a hypothesis to case NAME, or more predictions to one that it has (by the same TEXT)."""
    if len(predicts) != len(expect):
        raise ConfigError(
            f"{len(predicts)} --predicts and {len(expect)} --expect: each prediction is a command and its "
            "outcome."
        )
    from assay.store.triage.cases import change_case
    from assay.triage.case.notebook import Predicted, with_hypothesis, with_vote

    now_s = SystemClock().now_s()
    predicted = [Predicted(*pair) for pair in zip(predicts, expect, strict=True)]

    def added(case: "Case") -> "Case":
        case = with_hypothesis(case, hypothesis, predicted, by=vote or "somebody", now_s=now_s)
        return case if vote is None else with_vote(case, hypothesis.strip(), by=vote, now_s=now_s)

    _print(change_case(given_home(), name, added), as_json)


@case.command()
@click.argument("name")
@click.argument("hypothesis")
@click.argument("who")
@JSON
def vote(name: str, hypothesis: str, who: str, as_json: bool) -> None:
    """Write down that WHO believes a HYPOTHESIS (its number or its text) of case NAME. Votes are shown, and
    never counted."""
    from assay.store.triage.cases import change_case
    from assay.triage.case.notebook import with_vote

    now_s = SystemClock().now_s()
    changed = change_case(given_home(), name, lambda case: with_vote(case, hypothesis, by=who, now_s=now_s))
    _print(changed, as_json)


@case.command()
@click.argument("name")
@click.option("--no-proposals", is_flag=True, help="Check only what people added.")
@click.option(
    "--timeout-s",
    type=click.FloatRange(min=0, min_open=True),
    default=3_600.0,
    show_default=True,
    help="For each command.",
)
@JSON
def check(name: str, no_proposals: bool, timeout_s: float, as_json: bool) -> None:
    """Run what the hypotheses of case NAME predict, and those that its symptoms suggest: an operator (by the
    audit of each run's step), the rows of these steps, and what the scan of all attempts finds shared."""
    from assay.store.triage.cases import saved_case

    home = given_home()
    saved_case(home, name)  # what is not there is said before what follows is imported
    from assay.workflows.triage.case import Questions, check_case

    questions = Questions(home.environment(), SystemClock(), say=_say, timeout_s=timeout_s)
    _print(check_case(home, name, questions, proposes=not no_proposals), as_json)


@case.command()
@click.argument("name")
@JSON
def show(name: str, as_json: bool) -> None:
    """Show how case NAME stands: hypotheses by evidence, with their votes beside them."""
    from assay.store.triage.cases import saved_case

    _print(saved_case(given_home(), name), as_json)


def _say(text: str) -> None:
    click.secho(f"· {text}", fg="cyan", err=True)


def _print(case: "Case", as_json: bool) -> None:
    from assay.reporting.terminal.case import print_case
    from assay.triage.case.standing import standing

    found = standing(case)
    if as_json:
        click.echo(found.to_json())
    else:
        print_case(found)
