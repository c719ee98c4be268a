"""A debugging case on a terminal."""

import click

from assay.base.units import number_of
from assay.records.case import CaseStatus, HypothesisStatus
from assay.reporting.terminal.formatting import one_line

COLOURS = {"established": "green", "supported": "cyan", "unknown": "yellow", "refuted": "red"}
MARKS = {"held": "+", "failed": "-", "not_run": "?", None: " "}


def print_case(case: CaseStatus) -> None:
    """Print the symptoms, then the hypotheses by evidence with their predictions."""
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


def _print_hypothesis(hypothesis: HypothesisStatus) -> None:
    voters = f" ({', '.join(map(one_line, hypothesis.votes))})" if hypothesis.votes else ""
    proposed = "" if hypothesis.by else ", proposed by 'case check'"
    click.secho(
        f"#{hypothesis.hypothesis} {one_line(hypothesis.text)}: {hypothesis.verdict}", fg=COLOURS[hypothesis.verdict]
    )
    click.echo(
        f"   {hypothesis.held} held, {hypothesis.failed} failed, {hypothesis.not_run} not run; "
        f"{number_of(len(hypothesis.votes), 'vote')}{voters}{proposed}"
    )
    for prediction in hypothesis.predictions:
        shared = " (another predicts it, too)" if prediction.is_shared else ""
        seen = f": {one_line(prediction.seen)}" if prediction.seen else ""
        click.echo(f"   {MARKS[prediction.outcome]} {one_line(prediction.command)}{shared}")
        click.echo(f"     expects {one_line(prediction.expect)}{seen}")
