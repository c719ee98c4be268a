"""Prints throughput forecasts: the result first, then the terms of a step, and advice."""

from collections.abc import Callable, Iterator, Sequence

import click
from rich.text import Text

from assay.base.clock import utc_text
from assay.base.units import bytes_text, count_text, duration_text, number_of, percent_text
from assay.records.evaluation import Estimate
from assay.records.throughput import (
    CheckedTerm,
    ThroughputAdvice,
    ThroughputCalibration,
    ThroughputCheck,
    ThroughputForecast,
    ThroughputTerm,
    WorldSizeForecast,
)
from assay.reporting.terminal.terminal import name, number, print_list

TERM_WORDS: dict[ThroughputTerm, str] = {
    "lanes": "lanes",
    "uneven": "uneven lanes",
    "slowest": "slowest worker",
    "contention": "contention",
    "data": "rows",
    "rollouts": "rollouts",
    "fixed": "optimizer, ...",
    "bytes": "exchange: bytes",
    "latency": "exchange: messages",
    "commits": "commits",
    "failures": "failures",
}
"""In the order of the columns; docs/throughput.md explains them."""
SHOWN_SHARE = 0.005
"""Terms with a smaller share in every size are summed in one column."""
NO_SHARE = 0.0005
"""A smaller share would print as 0%."""


def print_forecast(found: ThroughputForecast, calibration: ThroughputCalibration, *, advised_for: int | None) -> None:
    """Print a forecast; `advised_for` is the number of workers of the advice, None without advice."""
    for line in _calibration_lines(calibration):
        click.echo(line)
    print_list(
        found.sizes,
        (number("workers"), lambda size: f"{size.world_size:,}"),
        (number("nodes"), lambda size: f"{len(size.nodes):,}"),
        (number("step"), lambda size: duration_text(size.step_s.value)),
        (number("speedup, 90%"), lambda size: _interval(size.speedup, "{:.2f}")),
        (number("efficiency"), lambda size: percent_text(size.efficiency.value)),
        (number("whole run, 90%"), lambda size: _times(size.run_s)),
        (number("device-hours"), lambda size: f"{size.device_hours.value:,.1f}"),
        (name("binds"), lambda size: TERM_WORDS[size.binds]),
        dispensable=("nodes", "efficiency"),
    )
    for target in found.targets:
        click.echo(f"P({target.speedup:g}x at {target.world_size}) = {target.probability:.2f}")
    _print_terms(found.sizes)
    for note in found.notes:
        click.secho(f"note: {note}", fg="yellow")
    if advised_for is not None:
        _print_advice(found.advice, advised_for)


def _print_terms(sizes: Sequence[WorldSizeForecast]) -> None:
    """Print the terms as shares that sum to 100%, including negative ones."""
    click.echo("where the time of a step goes")
    shown = [term for term in TERM_WORDS if any(abs(_share(size, [term])) > SHOWN_SHARE for size in sizes)]
    small = [term for term in TERM_WORDS if term not in shown]
    print_list(
        sizes,
        (number("workers"), lambda size: f"{size.world_size:,}"),
        *((number(TERM_WORDS[term]), _share_of([term])) for term in shown),
        *(
            [(number("all else"), _share_of(small))]
            if any(abs(_share(size, small)) > NO_SHARE for size in sizes)
            else []
        ),
        (number("sent a worker"), lambda size: bytes_text(size.sent_bytes)),
        (number("leaves a node"), lambda size: bytes_text(size.inter_node_bytes)),
        dispensable=("sent a worker", "leaves a node"),
    )


def print_check(found: ThroughputCheck) -> None:
    """Print the step, then each phase."""
    where = "within" if found.is_within else "outside"
    off = found.step_s.value / found.measured_step_s - 1
    click.echo(
        f"run {found.run_id}, attempt {found.attempt}, {number_of(found.world_size, 'worker')}, "
        f"{number_of(found.num_steps, 'step')}: a step took {duration_text(found.measured_step_s)}; forecast "
        f"{_times(found.step_s)} ({off:+.1%}), {where} its 90% interval"
    )
    print_list(
        found.terms,
        (name("phase"), lambda term: Text(term.phase, style="bold" if term.phase == found.worst else "")),
        (number("times"), lambda term: f"{term.count:,}"),
        (number("forecast, each"), lambda term: duration_text(term.forecast_s)),
        (number("took, each"), lambda term: duration_text(term.measured_s)),
        (number("off by, in all"), _off_by),
        dispensable=("times",),
    )
    click.echo(f"wrong by the most: {found.worst}")
    for note in found.notes:
        click.secho(f"note: {note}", fg="yellow")


def _calibration_lines(calibration: ThroughputCalibration) -> Iterator[str]:
    mean_lane_s = sum(sum(step.lane_s) for step in calibration.steps) / (len(calibration.steps) * calibration.lanes)
    day = utc_text(calibration.measured_s)[:10]
    yield (
        f"calibrated on {calibration.host}, {day}, {calibration.processor.model}: "
        f"{number_of(len(calibration.steps), 'step')} of {calibration.lanes} lanes, "
        f"{duration_text(mean_lane_s)} a lane; gradients {bytes_text(calibration.gradient_bytes)} in "
        f"{number_of(len(calibration.buckets), 'bucket')}; a loader reads "
        f"{count_text(1 / max(calibration.loader_row_s, 1e-9))} rows/s"
    )
    two = (
        f"two workers: a lane takes {calibration.two_workers.contention:.2f} times as long"
        if (calibration.two_workers)
        else "no room for two workers: nothing is known of what lies between them"
    )
    yield (
        f"  a commit {duration_text(calibration.commit_held_s)}, written after "
        f"{duration_text(calibration.commit_written_s)} ({bytes_text(calibration.commit_bytes)}); start "
        f"{duration_text(calibration.start_s)}, restart {duration_text(calibration.restart_s)}; {two}"
    )


def _print_advice(advice: tuple[ThroughputAdvice, ...], world_size: int) -> None:
    """Print gains; changes that save device-hours but take longer are listed separately."""
    gains = [change for change in advice if min(change.time_saved, change.device_hours_saved) >= 0]
    longer = [change for change in advice if change.time_saved < 0]
    if not gains:
        click.echo(f"nothing that is known here would gain anything on {world_size} workers")
    for found, what in (
        (gains, f"what would gain on {world_size} workers"),
        (longer, "what would take longer, and fewer device-hours"),
    ):
        if found:
            click.echo(f"{what}, for as many rows (* learns something else)")
            _print_changes(found)


def _print_changes(advice: Sequence[ThroughputAdvice]) -> None:
    print_list(
        advice,
        (number("time"), lambda change: f"{-change.time_saved:+.1%}"),
        (number("device-hours"), lambda change: f"{-change.device_hours_saved:+.1%}"),
        (name("with"), lambda change: ("* " if change.changes_learning else "  ") + " ".join(change.overrides)),
        (name("which is"), lambda change: change.change),
        dispensable=("which is",),
    )


def _share_of(terms: Sequence[ThroughputTerm]) -> Callable[[WorldSizeForecast], str]:
    return lambda size: percent_text(_share(size, terms))


def _share(size: WorldSizeForecast, terms: Sequence[ThroughputTerm]) -> float:
    """Return the share of these terms in the whole step."""
    return sum(size.terms[term] for term in terms) / sum(size.terms.values())


def _interval(estimate: Estimate, form: str) -> str:
    return f"{form.format(estimate.value)} [{form.format(estimate.low)}, {form.format(estimate.high)}]"


def _times(estimate: Estimate) -> str:
    assert estimate.low is not None and estimate.high is not None, "a forecast has an interval"
    low, high = duration_text(estimate.low), duration_text(estimate.high)
    return f"{duration_text(estimate.value)} [{low}, {high}]"


def _off_by(term: CheckedTerm) -> str:
    return f"{'-' if term.off_by_s < 0 else '+'}{duration_text(abs(term.off_by_s))}"
