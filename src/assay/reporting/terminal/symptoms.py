"""Failures in logs and recorded runs on a terminal."""

import click

from assay.base.clock import utc_text
from assay.records.symptoms import LogSymptom, RecordedSymptom, SharedCause, Symptoms
from assay.reporting.terminal.formatting import one_line


def print_symptoms(symptoms: Symptoms) -> None:
    """Print each log with its likely lines, each recorded failure, and common causes."""
    for log in symptoms.logs:
        _print_log(log)
    for failure in symptoms.failures:
        _print_failure(failure)
    for signature in symptoms.signatures:
        if signature.count > 1:
            where = (*signature.paths, *signature.runs)
            click.secho(f"{signature.count} alike, {signature.symptom_class}: {one_line(signature.key)}", bold=True)
            click.echo("".join(f"  {one_line(text)}\n" for text in where), nl=False)
    for cause in symptoms.shared:
        _print_shared(cause)
    if symptoms.failures and not symptoms.shared:
        click.echo(f"no cause is shared: {one_line(symptoms.shared_because)}")


def _print_log(log: LogSymptom) -> None:
    role = f" ({log.role})" if log.role else ""
    click.secho(f"{one_line(log.path)}: {log.symptom_class}{role}", bold=True)
    if not log.candidates:
        click.echo(f"  no line of {log.num_lines:,} speaks of a failure")
    for number, candidate in enumerate(log.candidates):
        click.secho(f"  {candidate.line:>8,}  {one_line(candidate.text)}", dim=number > 0)


def _print_failure(failure: RecordedSymptom) -> None:
    where = [
        f"attempt {failure.attempt}" if failure.attempt is not None else "",
        f"step {failure.step}" if failure.step is not None else "",
        f"rank {failure.rank} on {one_line(failure.host)}" if failure.rank is not None else "",
    ]
    location = ", ".join(filter(None, where))
    click.secho(f"{one_line(failure.run_id)}{f', {location}' if location else ''}: {failure.symptom_class}", bold=True)
    click.echo(f"  {one_line(failure.text)}")


def _print_shared(shared: SharedCause) -> None:
    named = [f"{name}={value}" for name, value in shared.factors.items()]
    named += [f"since {utc_text(shared.onset_s)}"] if shared.onset_s is not None else []
    evidence = f"replays of {', '.join(shared.runs)}" if shared.p_value is None else f"p = {shared.p_value:.2g}"
    certainty = "have" if shared.p_value is None else "may have"
    click.secho(
        f"{len(shared.signatures)} signatures {certainty} one cause, {one_line(' + '.join(named))} "
        f"({one_line(evidence)}):",
        fg="red",
        bold=True,
    )
    click.echo("".join(f"  {one_line(key)}\n" for key in shared.signatures), nl=False)
