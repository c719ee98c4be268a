"""`assay triage case`: a notebook for one investigation."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from assay.base.clock import SystemClock
from assay.base.errors import ConfigError
from assay.cli.parameters import SOURCE_OR_RUN, CommandGroup, current_home, print_status
from assay.cli.triage.parameters import JSON
from assay.cli.triage.symptoms import symptoms_of

if TYPE_CHECKING:
    from assay.records.case import Case


@click.group(cls=CommandGroup)
def case() -> None:
    """Keep a notebook of an investigation: symptoms, hypotheses, their predictions, and the evidence."""


@case.command("open")
@click.argument("name")
@click.argument("sources", nargs=-1, type=SOURCE_OR_RUN, metavar="[RUN|LOG]...")
@JSON
def open_(name: str, sources: tuple[Path | str, ...], as_json: bool) -> None:
    """Open case NAME with the symptoms of runs (RUN, or RUN@STEP for an anomalous step) and logs; without any,
    with all failures on record."""
    from assay.records.case import Case
    from assay.store.triage.cases import open_case, reject_existing_case

    home = current_home()
    reject_existing_case(home, name)
    new_case = Case(name=name, opened_s=SystemClock().now_s(), symptoms=symptoms_of(sources))
    open_case(home, new_case)
    _print(new_case, as_json)


@case.command()
@click.argument("name")
@click.option("--hypothesis", required=True, metavar="TEXT", help="Possible cause, in a sentence.")
@click.option(
    "--predicts",
    multiple=True,
    metavar="COMMAND",
    help="Read-only command of assay, e.g. 'replay lm-0312 --step 7 --audit-ops'. May be repeated.",
)
@click.option(
    "--expect",
    multiple=True,
    metavar="OUTCOME",
    help="Expected outcome of each --predicts: 'exit 1', or PATH=VALUE or PATH!=VALUE of its JSON, e.g. "
    "operators.finding.operator=aten::sum; * in a path matches any element.",
)
@click.option("--vote", metavar="WHO", help="Person who supports the hypothesis.")
@JSON
def add(
    name: str,
    hypothesis: str,
    predicts: tuple[str, ...],
    expect: tuple[str, ...],
    vote: str | None,
    as_json: bool,
) -> None:
    """Add a hypothesis to case NAME, or further predictions to an existing one (same TEXT)."""
    if len(predicts) != len(expect):
        raise ConfigError(
            f"{len(predicts)} --predicts and {len(expect)} --expect: each prediction is a command and its outcome."
        )
    from assay.store.triage.cases import change_case
    from assay.triage.case.notebook import Predicted, with_hypothesis, with_vote

    now_s = SystemClock().now_s()
    predicted = [Predicted(*pair) for pair in zip(predicts, expect, strict=True)]

    def added(case: "Case") -> "Case":
        case = with_hypothesis(case, hypothesis, predicted, by=vote or "somebody", now_s=now_s)
        return case if vote is None else with_vote(case, hypothesis.strip(), by=vote, now_s=now_s)

    _print(change_case(current_home(), name, added), as_json)


@case.command()
@click.argument("name")
@click.argument("hypothesis")
@click.argument("who")
@JSON
def vote(name: str, hypothesis: str, who: str, as_json: bool) -> None:
    """Record that WHO supports a HYPOTHESIS (its number or text) of case NAME. Votes are shown, but never
    counted."""
    from assay.store.triage.cases import change_case
    from assay.triage.case.notebook import with_vote

    now_s = SystemClock().now_s()
    changed = change_case(current_home(), name, lambda case: with_vote(case, hypothesis, by=who, now_s=now_s))
    _print(changed, as_json)


@case.command()
@click.argument("name")
@click.option("--no-proposals", is_flag=True, help="Check only the hypotheses of people.")
@click.option(
    "--timeout-s",
    type=click.FloatRange(min=0, min_open=True),
    default=3_600.0,
    show_default=True,
    help="Time limit of each command, in seconds.",
)
@JSON
def check(name: str, no_proposals: bool, timeout_s: float, as_json: bool) -> None:
    """Run the predictions of case NAME, including those of hypotheses that its symptoms suggest: a wrong
    operator (by an operator audit of each step), bad rows, and shared causes of all attempts."""
    from assay.store.triage.cases import saved_case

    home = current_home()
    saved_case(home, name)  # raises if there is no such case, before the imports
    from assay.workflows.triage.case import CommandRunner, check_case

    questions = CommandRunner(home.environment(), SystemClock(), on_command=print_status, timeout_s=timeout_s)
    _print(check_case(home, name, questions, proposes=not no_proposals), as_json)


@case.command()
@click.argument("name")
@JSON
def show(name: str, as_json: bool) -> None:
    """Show the hypotheses of case NAME by evidence, with their votes."""
    from assay.store.triage.cases import saved_case

    _print(saved_case(current_home(), name), as_json)


def _print(case: "Case", as_json: bool) -> None:
    from assay.reporting.terminal.case import print_case
    from assay.triage.case.verdicts import evaluate_case

    found = evaluate_case(case)
    if as_json:
        click.echo(found.to_json())
    else:
        print_case(found)
