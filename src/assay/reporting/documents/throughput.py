"""Documents of throughput: a forecast with the terms of a step and advice, and a forecast checked against a run."""

from collections.abc import Callable, Iterator, Sequence

from assay.base.clock import utc_text
from assay.base.units import bytes_text, count_text, duration_text, number_of, percent_text
from assay.records.evaluation import Estimate
from assay.records.throughput import (
    CheckedTerm,
    ClustersForecast,
    ThroughputAdvice,
    ThroughputCalibration,
    ThroughputCheck,
    ThroughputForecast,
    ThroughputTerm,
    WorldSizeForecast,
)
from assay.reporting.document import (
    Block,
    Cell,
    Document,
    Fact,
    FactList,
    Listing,
    Paragraph,
    Section,
    TitledTable,
    Verdict,
    name,
    number,
)

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
TRAINING_WORDS = {
    "one_cluster": "one cluster alone",
    "synchronous": "synchronous over the link",
    "outer_steps": "outer steps",
}
GAIN = 1.05
"""Outer steps pay if they train this many times the rows of the other ways."""
SHOWN_SHARE = 0.005
"""Terms with a smaller share in every size are summed in one column."""
NO_SHARE = 0.0005
"""A smaller share would print as 0%."""


def forecast_document(
    found: ThroughputForecast, calibration: ThroughputCalibration, *, advised_for: int | None
) -> Document:
    """Return a forecast; `advised_for` is the number of workers of the advice, None without advice."""
    sizes = TitledTable.of(
        "",
        "",
        found.sizes,
        (number("workers"), lambda size: f"{size.world_size:,}"),
        (number("nodes", drop_order=2), lambda size: f"{len(size.nodes):,}"),
        (number("step"), lambda size: duration_text(size.step_s.value)),
        (number("speedup, 90%"), lambda size: _interval(size.speedup, "{:.2f}".format)),
        (number("efficiency", drop_order=1), lambda size: percent_text(size.efficiency.value)),
        (number("whole run, 90%"), lambda size: _interval(size.run_s, duration_text)),
        (number("device-hours"), lambda size: f"{size.device_hours.value:,.1f}"),
        (name("binds"), lambda size: TERM_WORDS[size.binds]),
    )
    targets = [
        Fact(f"P({target.speedup:g}x at {target.world_size})", f"{target.probability:.2f}") for target in found.targets
    ]
    blocks: list[Block] = [sizes, *([FactList(targets)] if targets else []), _terms(found.sizes), *_notes(found.notes)]
    blocks += _clusters(found)
    if advised_for is not None:
        blocks += _advice(found.advice, advised_for)
    return Document(
        title="Throughput forecast",
        kind="throughput",
        sections=[Section("", [FactList(list(_calibration_facts(calibration)))]), Section("", blocks)],
    )


def _terms(sizes: Sequence[WorldSizeForecast]) -> TitledTable:
    """Return the terms as shares that sum to 100%, including negative ones."""
    shown = [term for term in TERM_WORDS if any(abs(_share(size, [term])) > SHOWN_SHARE for size in sizes)]
    small = [term for term in TERM_WORDS if term not in shown]
    columns = [(number(TERM_WORDS[term]), _share_of([term])) for term in shown]
    if any(abs(_share(size, small)) > NO_SHARE for size in sizes):
        columns.append((number("all else"), _share_of(small)))
    return TitledTable.of(
        "Where the time of a step goes",
        "",
        sizes,
        (number("workers"), lambda size: f"{size.world_size:,}"),
        *columns,
        (number("sent a worker", drop_order=2), lambda size: bytes_text(size.sent_bytes)),
        (number("leaves a node", drop_order=1), lambda size: bytes_text(size.inter_node_bytes)),
    )


def _clusters(found: ThroughputForecast) -> Iterator[Block]:
    """Yield the ways to train over several clusters, and what the settings of outer steps would have to be."""
    if found.link is None:
        return
    settings = found.clusters[0]
    trainings = [(item.world_size, way, item.trainings[way]) for item in found.clusters for way in item.trainings]
    yield TitledTable.of(
        f"{number_of(settings.num_clusters, 'cluster')}, {bytes_text(found.link.bytes_per_s)}/s each",
        f"An outer step every {number_of(settings.every, 'step')}, {settings.bits} bits a weight. Its effect on the "
        "loss is not modelled (docs/benchmarks.md).",
        trainings,
        (number("workers each"), lambda row: f"{row[0]:,}"),
        (name("trained by"), lambda row: TRAINING_WORDS[row[1]]),
        (number("step, 90%"), lambda row: _interval(row[2].step_s, duration_text)),
        (number("rows/s"), lambda row: f"{row[2].rows_per_s:,.1f}"),
        (number("sent a step", drop_order=2), lambda row: bytes_text(row[2].sent_bytes)),
        (number("received", drop_order=1), lambda row: bytes_text(row[2].received_bytes)),
    )
    yield TitledTable.of(
        "Outer steps",
        "",
        found.clusters,
        (number("workers each"), lambda item: f"{item.world_size:,}"),
        (number("pause"), lambda item: duration_text(item.pause_s)),
        (number("of the time"), lambda item: percent_text(item.waiting_share)),
        (number("5% from every"), lambda item: f"{item.advised_every:,}"),
        (number("deadline_s from"), lambda item: f"{item.least_deadline_s:,.1f}"),
        (number("after a death"), lambda item: f"{item.deadline_after_death_s:,.1f}"),
        (name("do they pay"), _worth),
    )


def _worth(item: ClustersForecast) -> str:
    """Return whether outer steps train more rows than the other ways."""
    rows = {TRAINING_WORDS[way]: training.rows_per_s for way, training in item.trainings.items()}
    outer = rows.pop(TRAINING_WORDS["outer_steps"])
    best = max(rows, key=lambda way: rows[way])
    word = "yes" if outer >= GAIN * rows[best] else "no"
    return f"{word}: {outer / rows[best]:.2f} times the rows of {best}"


def _notes(notes: Sequence[str]) -> list[Block]:
    return [Listing([Cell(note, "open") for note in notes])] if notes else []


def check_document(found: ThroughputCheck) -> Document:
    """Return a forecast beside the measured step, then each phase."""
    off = found.step_s.value / found.measured_step_s - 1
    where = f"{number_of(found.world_size, 'worker')}, {number_of(found.num_steps, 'step')}"
    sentence = (
        f"A step took {duration_text(found.measured_step_s)}; forecast {_interval(found.step_s, duration_text)} "
        f"({off:+.1%}). Wrong by the most: {found.worst}."
    )
    phases = TitledTable.of(
        "",
        "",
        found.terms,
        (name("phase"), lambda term: term.phase),
        (number("times", drop_order=1), lambda term: f"{term.count:,}"),
        (number("forecast, each"), lambda term: duration_text(term.forecast_s)),
        (number("took, each"), lambda term: duration_text(term.measured_s)),
        (number("off by, in all"), _off_by),
    )
    word = f"{'within' if found.is_within else 'outside'} its 90% interval"
    return Document(
        title=f"Run {found.run_id}, attempt {found.attempt}, {where}",
        kind="throughput",
        verdict=Verdict("good" if found.is_within else "open", word, sentence),
        sections=[Section("", [phases, *_notes(found.notes)])],
    )


def _calibration_facts(calibration: ThroughputCalibration) -> Iterator[Fact]:
    mean_lane_s = sum(sum(step.lane_s) for step in calibration.steps) / (len(calibration.steps) * calibration.lanes)
    day = utc_text(calibration.measured_s)[:10]
    yield Fact("calibrated on", f"{calibration.host}, {day}, {calibration.processor.model}")
    steps = f"{number_of(len(calibration.steps), 'step')} of {calibration.lanes} lanes"
    yield Fact("steps", steps, f"{duration_text(mean_lane_s)} a lane")
    buckets = number_of(len(calibration.buckets), "bucket")
    yield Fact("gradients", f"{bytes_text(calibration.gradient_bytes)} in {buckets}")
    yield Fact("a loader reads", f"{count_text(1 / max(calibration.loader_row_s, 1e-9))} rows/s")
    yield Fact(
        "a commit",
        f"{duration_text(calibration.commit_held_s)}, written after {duration_text(calibration.commit_written_s)}",
        bytes_text(calibration.commit_bytes),
    )
    yield Fact("start", duration_text(calibration.start_s), f"restart {duration_text(calibration.restart_s)}")
    two = calibration.two_workers
    yield Fact(
        "two workers",
        f"a lane takes {two.contention:.2f} times as long"
        if two
        else "no room for two workers: nothing is known of what lies between them",
    )


def _advice(advice: Sequence[ThroughputAdvice], world_size: int) -> Iterator[Block]:
    """Yield gains; changes that save device-hours but take longer are listed separately."""
    gains = [change for change in advice if min(change.time_saved, change.device_hours_saved) >= 0]
    longer = [change for change in advice if change.time_saved < 0]
    if not gains:
        yield Paragraph(f"Nothing that is known here would gain anything on {world_size} workers.")
    for found, what in (
        (gains, f"What would gain on {world_size} workers"),
        (longer, "What would take longer, and fewer device-hours"),
    ):
        if found:
            yield TitledTable.of(
                what,
                "For as many rows; * learns something else.",
                found,
                (number("time"), lambda change: f"{-change.time_saved:+.1%}"),
                (number("device-hours"), lambda change: f"{-change.device_hours_saved:+.1%}"),
                (name("with"), lambda change: ("* " if change.changes_learning else "  ") + " ".join(change.overrides)),
                (name("which is", drop_order=1), lambda change: change.change),
            )


def _share_of(terms: Sequence[ThroughputTerm]) -> Callable[[WorldSizeForecast], str]:
    return lambda size: percent_text(_share(size, terms))


def _share(size: WorldSizeForecast, terms: Sequence[ThroughputTerm]) -> float:
    """Return the share of these terms in the whole step."""
    return sum(size.terms[term] for term in terms) / sum(size.terms.values())


def _interval(estimate: Estimate, text: Callable[[float], str]) -> str:
    assert estimate.low is not None and estimate.high is not None, "a forecast has an interval"
    return f"{text(estimate.value)} [{text(estimate.low)}, {text(estimate.high)}]"


def _off_by(term: CheckedTerm) -> str:
    return f"{'-' if term.off_by_s < 0 else '+'}{duration_text(abs(term.off_by_s))}"
