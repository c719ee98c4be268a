"""How a case stands, on a terminal."""

import click

from assay.base.units import number_of
from assay.records.case import CaseStanding, HypothesisStanding
from assay.reporting.terminal.formatting import one_line

COLOURS = {"established": "green", "supported": "cyan", "unknown": "yellow", "refuted": "red"}
MARKS = {"held": "+", "failed": "-", "not_run": "?", None: " "}


def print_case(case: CaseStanding) -> None:
    """Its symptoms in a line each, then the hypotheses by evidence with what each predicted."""
    seen = case.symptoms
    click.secho(
        f"case {one_line(case.name)}: {number_of(len(seen.logs), 'log')}, "
        f"{number_of(len(seen.failures), 'symptom')} on record, "
        f"{number_of(len(seen.signatures), 'signature')}",
        bold=True,
    )
    for signature in seen.signatures:
        click.echo(f"  {signature.count} x {signature.symptom_class}: {one_line(signature.key)}")
    click.secho(f"{case.verdict}: {one_line(case.because)}", fg=COLOURS[case.verdict], bold=True)
    for hypothesis in case.hypotheses:
        _print_hypothesis(hypothesis)


def _print_hypothesis(each: HypothesisStanding) -> None:
    voters = f" ({', '.join(map(one_line, each.votes))})" if each.votes else ""
    proposed = "" if each.by else ", proposed by 'case check'"
    click.secho(f"#{each.hypothesis} {one_line(each.text)}: {each.verdict}", fg=COLOURS[each.verdict])
    click.echo(
        f"   {each.held} held, {each.failed} failed, {each.not_run} not run; "
        f"{number_of(len(each.votes), 'vote')}{voters}{proposed}"
    )
    for prediction in each.predictions:
        shared = " (another predicts it, too)" if prediction.is_shared else ""
        seen = f": {one_line(prediction.seen)}" if prediction.seen else ""
        click.echo(f"   {MARKS[prediction.outcome]} {one_line(prediction.command)}{shared}")
        click.echo(f"     expects {one_line(prediction.expect)}{seen}")
