"""The results of `assay triage` subcommands on a terminal."""

from collections.abc import Sequence

import click

from assay.base.units import duration_text, number_of, percent_text
from assay.records.ci_report import CiChanged, CiReport, CiSpans
from assay.records.commit_bisection import CommitBisection
from assay.records.data_changes import DataChanges, MovedMetric, MovedSlice
from assay.records.failure_causes import AdjustedRatio, FailureCause, FailureDiagnosis
from assay.records.fix_check import FixCheck
from assay.records.hung_ranks import HungRanks
from assay.records.side_by_side import SideBySide
from assay.records.skew import Skew
from assay.records.slow_changes import SlowChange, SlowChanges
from assay.records.startup import Startup
from assay.reporting.terminal.formatting import device_hours_text, one_line

COLOURS = {"cause": "red", "several": "red", "unidentifiable": "yellow", "nothing": "green"}
_BAR = 30
SLOW_COLOURS = {"assigned": "red", "unidentifiable": "yellow", "unexplained": "yellow"}
SIDE_COLOURS = {"slower": "red", "faster": "green", "same": "green", "undecided": "yellow"}
BISECTION_COLOURS = {"found": "red", "several": "red", "no_difference": "green", "undecided": "yellow"}
FIX_COLOURS = {"fixed": "green", "worse": "red", "undecided": "yellow"}


def print_diagnosis(diagnosis: FailureDiagnosis) -> None:
    """Print the verdict, the causes, and what was ruled out."""
    before = "" if diagnosis.baseline_rate is None else f" (before: {_rate(diagnosis.baseline_rate)})"
    click.echo(
        f"{diagnosis.failures:,} of {diagnosis.attempts:,} attempts failed: {_rate(diagnosis.rate)}{before}; "
        f"{number_of(diagnosis.units, 'unit')}, correlation {diagnosis.unit_correlation:.2f}"
    )
    colour = "yellow" if diagnosis.verdict == "nothing" and diagnosis.failures else COLOURS[diagnosis.verdict]
    click.secho(f"{diagnosis.verdict}: {diagnosis.because}", fg=colour, bold=True)
    for number, cause in enumerate(diagnosis.causes, 1):
        _print_cause(number, cause)
    if diagnosis.ruled_out:
        click.echo("ruled out:")
    for item in diagnosis.ruled_out:
        click.echo(
            f"  {_text(item.factors)}: {item.failures:,} of {item.attempts:,} ({_rate(item.rate)}), elsewhere "
            f"{_rate(item.elsewhere_rate)}: {item.because}"
        )
        _print_ratios(item.adjustments)
    for name, reason in diagnosis.left_out.items():
        click.echo(f"not scanned: {name} ({reason})")


def print_fix_check(check: FixCheck) -> None:
    """Print both failure rates and the verdict."""
    if check.baseline_rate is not None:
        click.echo(
            f"before: {_rate(check.baseline_rate)} of {check.baseline_attempts:,} attempts failed "
            f"({_rate(check.baseline_low)} to {_rate(check.baseline_high)}); correlation in units "
            f"{check.unit_correlation:.2f}"
        )
    if check.rate is not None:
        click.echo(f"since:  {check.failures:,} of {check.attempts:,} failed ({_rate(check.rate)})")
    click.echo(
        f"evidence that it is fixed: {check.e_value:.3g} (decides at 20); that it is worse: {check.worse_e_value:.3g}"
    )
    after = "" if check.decided_after is None else f", decided after {number_of(check.decided_after, 'attempt')}"
    click.secho(f"{check.verdict}{after}: {check.because}", fg=FIX_COLOURS[check.verdict], bold=True)


def print_data_changes(changes: DataChanges) -> None:
    """Print each change with its size and consequences."""
    click.echo(f"{number_of(changes.rows_before, 'row')} before, {changes.rows_after:,} after")
    colour = "red" if changes.results else "green"
    click.secho(one_line(changes.because), fg=colour, bold=True)
    for number, finding in enumerate(changes.results, 1):
        click.secho(f"{number}. {one_line(finding.what)}: {finding.kind}", bold=True)
        click.echo(f"   {one_line(finding.description)}")
        click.echo(
            f"   effect {finding.effect:+.4g} [{finding.low:+.4g}, {finding.high:+.4g}], p = {finding.p_value:.2g}"
        )
        if finding.consequences:
            click.echo(f"   so did {one_line('; '.join(finding.consequences))}")
    if changes.moved is not None:
        _print_moved(changes.moved)


def _print_moved(moved: MovedMetric) -> None:
    click.secho(f"{moved.metric}: {_moved_text(moved.overall)}", bold=True)
    for slice_part in moved.slices:
        click.echo(f"   {one_line(slice_part.column)}={one_line(slice_part.value)}: {_moved_text(slice_part)}")
    if not moved.slices:
        click.echo(f"   none of {number_of(moved.num_slices, 'slice')} surely moved")
    price = "" if moved.device_hours is None else f", about {device_hours_text(3_600.0 * moved.device_hours)} each"
    click.echo(f"next: {one_line(moved.ablation)}{price}")


def _moved_text(moved: MovedSlice) -> str:
    return f"{moved.before:.4f} -> {moved.after:.4f} ({moved.low:+.4f} to {moved.high:+.4f})"


def print_startup(startup: Startup) -> None:
    """Print the startup spans, the slowest attempt, and spans that grew."""
    click.echo(
        f"{duration_text(startup.total_s)} to the end of the first step (the median of "
        f"{number_of(startup.attempts, 'attempt')}), {duration_text(startup.unaccounted_s)} of it in no part"
    )
    width = max(map(len, startup.spans), default=0)
    for name, span in startup.spans.items():
        bar = "█" * round(_BAR * span.share)
        click.echo(f"  {name:<{width}} {span.median_s:8.2f} s   90% within {span.p90_s:8.2f} s {span.share:6.1%} {bar}")
    slowest = startup.slowest
    if startup.attempts > 1:
        click.echo(
            f"slowest: {slowest.run_id}, attempt {slowest.attempt}, {duration_text(slowest.total_s)} by rank "
            f"{slowest.rank}"
        )
    if startup.left_out:
        click.echo(f"left out: {number_of(startup.left_out, 'attempt')} without a first step")
    if startup.against is not None and not startup.grew:
        click.secho(f"no part is surely longer than in {startup.against}", fg="green")
    for item in startup.grew:
        within = "one attempt on a side" if item.low is None else f"{item.low:+.2f} to {item.high:+.2f} s"
        click.secho(f"grew against {startup.against}: {item.span} {item.seconds:+.2f} s ({within})", fg="red")
    if any(item.span == "imports" for item in startup.grew):
        click.echo("next: python -X importtime -c 'import assay.elastic.preload' 2>&1 | sort -t'|' -k2 -n")


MOST_LISTED = 10
"""Tests listed; `--json` has all."""


def print_ci(report: CiReport) -> None:
    """Print test statistics."""
    click.secho(
        f"{number_of(report.runs, 'run')} of {number_of(report.tests, 'test')}, "
        f"{number_of(report.commits, 'known commit')}: {duration_text(report.wall_s)} a run",
        bold=True,
    )
    _print_spans(report.spans)
    click.echo(f"no run is quicker than {duration_text(report.floor_s)}: {one_line(report.floor_test)}")
    if report.bound_s is not None:
        click.echo(
            f"{number_of(len(report.shards), 'shard')}: {duration_text(report.shards[0].seconds)} "
            f"(at best {duration_text(report.bound_s)}); --json has the tests of each"
        )
    click.echo(f"flaky: {report.flaky_because}")
    for item in report.flaky[:MOST_LISTED]:
        click.secho(
            f"  {_rate(item.rate)} [{_rate(item.low)}, {_rate(item.high)}]  {one_line(item.test)} "
            f"({item.failures:,} of {item.runs:,} runs failed)",
            fg="yellow",
        )
    if report.first_failure:
        recorded, ordered = report.first_failure.recorded_s, report.first_failure.ordered_s
        click.echo(
            f"the first failure comes after {duration_text(recorded)} of tests; in an order from other "
            f"commits' runs after {duration_text(ordered)}. Now first:"
        )
        click.echo("".join(f"  {one_line(test)}\n" for test in report.order[:MOST_LISTED]), nl=False)
    for what, reason in report.left_out.items():
        click.echo(f"{one_line(what)}: {reason}")


def print_ci_changed(changed: CiChanged) -> None:
    """Print the tests that a change affects."""
    click.secho(
        f"{number_of(len(changed.files), 'file')} changed since {changed.since[:10]}: they reach "
        f"{len(changed.tests):,} of {number_of(changed.test_files, 'test file')}",
        bold=True,
    )
    if changed.selects_all:
        click.echo(f"every test stands on {one_line(', '.join(changed.selects_all))}")
    else:
        _print_listed(changed.tests)
    if changed.unreached_files:
        click.secho("changed, and no test uses it:", fg="yellow")
        _print_listed(changed.unreached_files)
    if changed.unknown:
        click.secho("changed, and which tests read it is unknown:", fg="yellow")
        _print_listed(changed.unknown)


def _print_listed(texts: Sequence[str]) -> None:
    click.echo("".join(f"  {one_line(text)}\n" for text in texts[:MOST_LISTED]), nl=False)
    if len(texts) > MOST_LISTED:
        click.echo(f"  and {len(texts) - MOST_LISTED:,} more; --json has them all")


def _print_spans(spans: CiSpans) -> None:
    named = {
        "in tests": spans.tests_s,
        "set-up": spans.setup_s,
        "call": spans.call_s,
        "tear-down": spans.teardown_s,
        "outside of tests (start, imports, collection)": spans.outside_s,
        "idle workers": spans.idle_s,
    }
    known = [f"{name} {duration_text(seconds)}" for name, seconds in named.items() if seconds is not None]
    unknown = [name for name, seconds in named.items() if seconds is None]
    click.echo(f"over all files: {', '.join(known)}" + (f"; not on record: {', '.join(unknown)}" if unknown else ""))


def print_slow_changes(changes: SlowChanges) -> None:
    """Print each change with its size, its cause and the next step."""
    click.echo(
        f"{one_line(changes.value)}: {number_of(changes.measurements, 'measurement')}, noise {changes.noise:.3g}, "
        f"correlation {changes.correlation:.2f}"
    )
    click.secho(changes.because, bold=True)
    for change in changes.changes:
        _print_change(change)


def _print_change(change: SlowChange) -> None:
    interval = "" if change.low is None else f" [{change.low:.4g}, {change.high:.4g}]"
    size = f"{change.before:.4g} -> {change.after:.4g}"
    times = "" if change.ratio is None else f", x {change.ratio:.4g}{interval}"
    phase = "" if change.phase is None else f", most of it in {one_line(change.phase)}"
    click.secho(f"{one_line(change.at)} (measurement {change.index}): {size}{times}{phase}", bold=True)
    click.secho(f"   {change.verdict}: {change.because}", fg=SLOW_COLOURS[change.verdict])
    for name, (before, after) in change.changed.items():
        click.echo(f"   {one_line(name)}: {one_line(before) or '(none)'} -> {one_line(after) or '(none)'}")
    for name, effect in change.assigned.items():
        click.echo(f"   due to {one_line(name)}: {effect:.4g}")
    click.echo(f"   next: {one_line(change.next)}")


def print_side_by_side(comparison: SideBySide) -> None:
    """Print both variants, the verdict, and the time by phase."""
    click.echo(f"A  {one_line(comparison.a)}\nB  {one_line(comparison.b)}")
    click.echo(_spent(len(comparison.blocks), comparison.steps, comparison.device_hours, comparison.noise))
    click.secho(f"{comparison.verdict}: {comparison.because}", fg=SIDE_COLOURS[comparison.verdict], bold=True)
    width = max(map(len, comparison.phases), default=0)
    for name, phase in comparison.phases.items():
        within = (
            ""
            if phase.low_s is None or phase.high_s is None
            else f" ({1e3 * phase.low_s:+.3g} to {1e3 * phase.high_s:+.3g})"
        )
        click.echo(
            f"  {name:<{width}} {1e3 * phase.a_s:9.4g} -> {1e3 * phase.b_s:<9.4g} ms a step, "
            f"{1e3 * phase.difference_s:+.3g}{within}"
        )
    click.echo(f"next: {one_line(comparison.next)}")


def print_bisection(bisection: CommitBisection) -> None:
    """Print the verdict, the measured commits, and those that do not run."""
    click.echo(
        f"{number_of(bisection.commits, 'commit')}, {bisection.unchanged} of them without a change of the code; "
        + _spent(bisection.blocks, bisection.steps, bisection.device_hours, None)
    )
    click.secho(
        one_line(f"{bisection.verdict}: {bisection.because}"), fg=BISECTION_COLOURS[bisection.verdict], bold=True
    )
    for suspect in bisection.suspects:
        measured = "not measured" if suspect.ratio is None else f"x {suspect.ratio:.3f} of GOOD"
        click.echo(
            f"  {suspect.commit[:10]} {percent_text(suspect.probability):>6}  {measured}, "
            f"{number_of(suspect.blocks, 'block')}  {one_line(suspect.subject)}"
        )
    for skipped in bisection.skipped:
        click.secho(f"  {skipped.commit[:10]} does not run: {one_line(skipped.because)}", fg="yellow")
    click.echo(f"next: {one_line(bisection.next)}")


def _spent(blocks: int, steps: int, device_hours: float, noise: float | None) -> str:
    noise_text = "" if noise is None else f", which differ by {percent_text(noise)}"
    return f"{number_of(blocks, 'block')} of {steps} steps of each{noise_text}; {device_hours:.2g} device-hours"


def print_skew(skew: Skew) -> None:
    """Print the verdict, and the locations and work with the largest effects."""
    click.echo(
        f"{number_of(skew.measurements, 'duration')}: location {percent_text(skew.location_sd)}, work "
        f"{percent_text(skew.work_sd)}, noise {percent_text(skew.noise)}"
    )
    click.secho(f"{skew.verdict}: {skew.because}", bold=True)
    for effect in skew.effects:
        kind = f"{one_line(effect.operation)}: " if effect.operation else ""
        click.echo(
            f"  {kind}{one_line(_text(effect.factors))}: x {effect.ratio:.3g} [{effect.low:.3g}, {effect.high:.3g}]"
        )


def print_hung_ranks(found: HungRanks) -> None:
    """Print the ranks that block others, and the blocked groups."""
    ranks = ", ".join(map(str, found.ranks)) or "none that could be named"
    click.secho(f"ranks: {ranks}", fg="red" if found.ranks else None, bold=True)
    click.echo(found.because)
    for group in found.groups:
        click.echo(f"  group {one_line(group.group)}, collective {group.sequence}, {one_line(group.collective)}:")
        click.echo(f"    wait: {_ranks(group.waiting)}; never entered it: {_ranks(group.absent)}")
        for called, entered_ranks in group.others.items():
            click.echo(f"    entered {one_line(called)} instead: {_ranks(entered_ranks)}")
        if group.without_dump:
            click.echo(f"    no dump of: {_ranks(group.without_dump)}")


def _ranks(ranks: tuple[int, ...]) -> str:
    return ", ".join(map(str, ranks)) or "none"


def _print_cause(number: int, cause: FailureCause) -> None:
    certainty = f"p = {cause.p_value:.2g}" if cause.is_confirmed else f"suspected, p = {cause.p_value:.2g}"
    click.secho(f"{number}. {_text(cause.factors)} ({certainty})", bold=True)
    click.echo(
        f"   {cause.failures:,} of {cause.attempts:,} attempts in {number_of(cause.units, 'unit')} failed: "
        f"{_rate(cause.rate)} [{_rate(cause.rate_low)}, {_rate(cause.rate_high)}], elsewhere "
        f"{_rate(cause.elsewhere_rate)}; {percent_text(cause.share_of_excess)} of what is too much"
    )
    _print_ratios(cause.adjustments)
    for tie in cause.ties:
        click.echo(f"   not told apart from {_text(tie)}")
    if cause.lost_device_hours is not None:
        click.echo(f"   lost: {cause.lost_device_hours:.1f} device-hours")
    click.echo(f"   next: {cause.next}")


def _print_ratios(ratios: tuple[AdjustedRatio, ...]) -> None:
    for ratio in ratios:
        within = f"within {', '.join(ratio.within)}" if ratio.within else "to all others"
        click.echo(f"   ratio {within}: {ratio.ratio:.1f} ({ratio.low:.1f} to {ratio.high:.1f})")


def _rate(rate: float) -> str:
    return f"{rate:.2%}" if rate < 0.01 else f"{rate:.1%}"


def _text(factors: dict[str, str]) -> str:
    return " + ".join(f"{name}={value}" for name, value in factors.items())
