"""What each command of `assay triage` found, as a document."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from assay.base.clock import utc_text
from assay.base.units import days_text, duration_text, number_of, percent_text
from assay.records.ci_report import CiChanged, CiReport
from assay.records.commit_bisection import CommitBisection
from assay.records.data_changes import DataChanges, MovedMetric, MovedSlice
from assay.records.failure_causes import AdjustedRatio, FailureCause, FailureDiagnosis
from assay.records.fix_check import FixCheck
from assay.records.guard import GuardStatus
from assay.records.hung_ranks import HungGroup, HungRanks
from assay.records.side_by_side import SideBySide
from assay.records.skew import Skew
from assay.records.slow_changes import SlowChange, SlowChanges
from assay.records.startup import GrownSpan, Startup
from assay.records.symptoms import LogSymptom, RecordedSymptom, SharedCause, Symptoms
from assay.records.triage_overview import Finding, TriageOverview
from assay.reporting.charts.triage_figures import rates_figure, scan_figure, seconds_figure, speed_figure
from assay.reporting.document import (
    Block,
    Cell,
    Document,
    Fact,
    Facts,
    Listing,
    Paragraph,
    Section,
    Table,
    Text,
    TitledTable,
    Tone,
    Verdict,
    name,
    number,
)
from assay.reporting.views.statements import device_time_text
from assay.reporting.views.triage_statements import (
    bisection_because,
    bisection_next,
    change_because,
    change_next,
    changes_because,
    comparison_because,
    comparison_next,
    data_because,
    data_text,
    factors_text,
    finding_next,
    finding_text,
    skew_because,
    triage_text,
)
from assay.triage.overview import Fleet

HOUR_S = 3_600.0
MOST_LISTED = 10
"""Entries of a list; `--json` has all."""
TONES: dict[str, Tone] = {
    **dict.fromkeys(("cause", "several", "worse", "slower", "found"), "bad"),
    **dict.fromkeys(("nothing", "fixed", "faster", "same", "no_difference", "even"), "good"),
}
"""By verdict; others are open."""


def triage_document(found: Any) -> Document:
    """Return the document of a record, or of a list of guards."""
    if isinstance(found, list):
        return _guards(found)
    return _DOCUMENTS[type(found)](found)


def _document(
    title: str,
    kind: str,
    verdict: tuple[str, str] | None,
    tiles: Sequence[Fact],
    *sections: Section,
    tone: Tone | None = None,
) -> Document:
    """Return a document; `verdict` is a word and its sentence."""
    judged = None if verdict is None else Verdict(tone or TONES.get(verdict[0], "open"), *verdict)
    shown = [section for section in sections if section.blocks]
    return Document(title=title, kind=kind, verdict=judged, tiles=tiles, sections=shown)


def _next(text: str) -> Section:
    return Section("", [Facts([Fact("next", text)])])


def _listed(title: str, items: Sequence[str]) -> Listing:
    rest = [f"and {len(items) - MOST_LISTED:,} more (--json)"] if len(items) > MOST_LISTED else []
    return Listing([*items[:MOST_LISTED], *rest], title=title)


def _numbers(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers)) or "none"


def _range(low: float, high: float, text: Callable[[float], str] = percent_text) -> str:
    return f"{text(low)} to {text(high)}"


# Failures


def _diagnosis(found: FailureDiagnosis) -> Document:
    before = "" if found.baseline_rate is None else f"before: {percent_text(found.baseline_rate)}"
    tone: Tone | None = "open" if found.verdict == "nothing" and found.failures else None
    ruled_out = [
        Fact(
            factors_text(item.factors),
            f"{item.failures:,} of {item.attempts:,} ({percent_text(item.rate)}), elsewhere "
            f"{percent_text(item.elsewhere_rate)}",
            triage_text(item.because),
        )
        for item in found.ruled_out
    ]
    return _document(
        f"{found.failures:,} of {found.attempts:,} attempts failed",
        "failures",
        (found.verdict, triage_text(found.because)),
        [
            Fact("rate", percent_text(found.rate), before),
            Fact("units", f"{found.units:,}", f"correlation {found.unit_correlation:.2f}"),
        ],
        *(_cause(number, cause) for number, cause in enumerate(found.causes, 1)),
        Section("Ruled out", [Facts(ruled_out)] if ruled_out else []),
        Section("Not scanned", [Facts([Fact(name, triage_text(why)) for name, why in found.left_out.items()])])
        if found.left_out
        else Section("", []),
        tone=tone,
    )


def _cause(index: int, cause: FailureCause) -> Section:
    suspected = "" if cause.is_confirmed else "suspected, "
    facts = [
        Fact(
            "failed",
            f"{cause.failures:,} of {cause.attempts:,} attempts in {number_of(cause.units, 'unit')}: "
            f"{percent_text(cause.rate)} [{_range(cause.rate_low, cause.rate_high)}]",
            f"elsewhere {percent_text(cause.elsewhere_rate)}; {percent_text(cause.share_of_excess)} of the excess",
        ),
        *_ratios(cause.adjustments),
        *(Fact("not told apart from", factors_text(tie)) for tie in cause.ties),
    ]
    if cause.lost_device_hours is not None:
        facts.append(Fact("lost", device_time_text(HOUR_S * cause.lost_device_hours)))
    facts.append(Fact("next", triage_text(cause.next)))
    return Section(f"{index}. {factors_text(cause.factors)} ({suspected}p = {cause.p_value:.2g})", [Facts(facts)])


def _ratios(ratios: Sequence[AdjustedRatio]) -> Iterator[Fact]:
    for ratio in ratios:
        within = f"ratio within {', '.join(ratio.within)}" if ratio.within else "ratio to all others"
        yield Fact(within, f"{ratio.ratio:.1f} ({ratio.low:.1f} to {ratio.high:.1f})")


def _fix(check: FixCheck) -> Document:
    after = "" if check.decided_after is None else f"decided after {number_of(check.decided_after, 'attempt')}"
    tiles = [
        Fact("evidence that it is fixed", f"{check.e_value:.3g}", "decides at 20"),
        Fact("evidence that it is worse", f"{check.worse_e_value:.3g}", after),
    ]
    if check.rate is not None:
        tiles.insert(0, Fact("since", percent_text(check.rate), f"{check.failures:,} of {check.attempts:,} failed"))
    if check.baseline_rate is not None:
        note = (
            f"of {check.baseline_attempts:,} attempts ({_range(check.baseline_low, check.baseline_high)}); correlation "
            f"in units {check.unit_correlation:.2f}"
        )
        tiles.insert(0, Fact("before", percent_text(check.baseline_rate), note))
    return _document("Did the fix work?", "fix", (check.verdict, triage_text(check.because)), tiles)


def _guards(statuses: Sequence[GuardStatus]) -> Document:
    rows = [(status.guard, status) for status in statuses]
    table = Table.of(
        rows,
        (name("guard"), lambda row: row[0].name),
        ("", lambda row: Cell(*_state(row[1]))),
        (number("failed"), lambda row: percent_text(row[0].rate)),
        (number("elsewhere"), lambda row: percent_text(row[0].elsewhere_rate)),
        ("accepted", lambda row: f"{utc_text(row[0].accepted_s)} by {row[0].accepted_by}"),
        ("since then", lambda row: _since_text(row[1])),
    )
    none = "'assay triage guard DIAGNOSIS' accepts what 'triage failures --json' found."
    blocks: list[Block] = [TitledTable("", "", table)] if rows else [Paragraph(none)]
    return _document("Guards" if rows else "no guard stands", "guards", None, [], Section("", blocks))


def _state(status: GuardStatus) -> tuple[str, Tone]:
    if status.has_lapsed:
        return "lapsed", "good"
    return ("refuses runs", "bad") if status.guard.is_refusing else ("warns of runs", "open")


def _since_text(status: GuardStatus) -> str:
    if (check := status.since) is None:
        return "no attempt on record is on it, so nothing can be said; 'assay triage guard --lift' ends it"
    return f"{check.failures:,} of {check.attempts:,} attempts on it failed; {triage_text(check.because)}"


# Symptoms and hangs


def _symptoms(found: Symptoms) -> Document:
    alike = [signature for signature in found.signatures if signature.count > 1]
    because = []
    if found.failures and not found.shared and found.shared_because is not None:
        because = [Paragraph(f"no cause is shared: {triage_text(found.shared_because)}")]
    return _document(
        f"{number_of(len(found.logs), 'log')}, {number_of(len(found.failures), 'failure')} on record",
        "symptoms",
        None,
        [],
        *(Section("", [_log(log)]) for log in found.logs),
        Section("Failures on record", [Listing([_failure_text(failure) for failure in found.failures])])
        if found.failures
        else Section("", []),
        *(
            Section("", [Listing([*item.paths, *item.runs], f"{item.count} alike, {item.symptom_class}: {item.key}")])
            for item in alike
        ),
        *(Section("", [_shared(cause)]) for cause in found.shared),
        Section("", because),
    )


def _log(log: LogSymptom) -> Listing:
    role = f" ({log.role})" if log.role else ""
    lines = [f"line {candidate.line:,}: {candidate.text}" for candidate in log.candidates]
    none = [f"no line of {log.num_lines:,} names a failure"]
    return Listing(lines or none, title=f"{log.path}: {log.symptom_class}{role}")


def _failure_text(failure: RecordedSymptom) -> str:
    where = [
        f"attempt {failure.attempt}" if failure.attempt is not None else "",
        f"step {failure.step}" if failure.step is not None else "",
        f"rank {failure.rank} on {failure.host}" if failure.rank is not None else "",
    ]
    return f"{', '.join(filter(None, [failure.run_id, *where]))}: {failure.symptom_class}: {failure.text}"


def _shared(shared: SharedCause) -> Listing:
    named = [factors_text(shared.factors)] if shared.factors else []
    named += [f"since {utc_text(shared.onset_s)}"] if shared.onset_s is not None else []
    evidence = f"p = {shared.p_value:.2g}" if shared.p_value is not None else f"replays of {', '.join(shared.runs)}"
    certainty = "have" if shared.p_value is None else "may have"
    title = f"{len(shared.signatures)} signatures {certainty} one cause, {' + '.join(named)} ({evidence})"
    return Listing(shared.signatures, title=title)


def _hung(found: HungRanks) -> Document:
    ranks = f"ranks {_numbers(found.ranks)}" if found.ranks else "no rank could be named"
    verdict = (ranks, triage_text(found.because))
    sections = [_hung_group(group) for group in found.groups]
    return _document("Who blocks the others?", "hang", verdict, [], *sections, tone="bad" if found.ranks else "open")


def _hung_group(group: HungGroup) -> Section:
    facts = [Fact("wait", _numbers(group.waiting)), Fact("never entered it", _numbers(group.absent))]
    facts += [Fact(f"entered {called} instead", _numbers(ranks)) for called, ranks in group.others.items()]
    facts += [Fact("no dump of", _numbers(group.without_dump))] if group.without_dump else []
    return Section(f"group {group.group}, collective {group.sequence}, {group.collective}", [Facts(facts)])


# Speed


def _changes(found: SlowChanges) -> Document:
    tiles = [
        Fact("measurements", f"{found.measurements:,}"),
        Fact("noise", f"{found.noise:.3g}", f"correlation {found.correlation:.2f}"),
    ]
    verdict = (number_of(len(found.changes), "change"), changes_because(found))
    return _document(found.value, "speed", verdict, tiles, *map(_change, found.changes))


def _change(change: SlowChange) -> Section:
    interval = "" if change.low is None or change.high is None else f" [{_range(change.low, change.high, _short)}]"
    times = "" if change.ratio is None else f"x {change.ratio:.4g}{interval}"
    tone: Tone = "bad" if change.verdict == "assigned" else "open"
    facts = [
        Fact("size", f"{change.before:.4g} -> {change.after:.4g}", times),
        Fact("verdict", Cell(f"{change.verdict}: {change_because(change)}", tone)),
        *([Fact("most of it in", change.phase)] if change.phase is not None else []),
        *(Fact(factor, f"{was or '(none)'} -> {now or '(none)'}") for factor, (was, now) in change.changed.items()),
        *(Fact(f"due to {factor}", f"{effect:.4g}") for factor, effect in change.assigned.items()),
        Fact("next", change_next(change)),
    ]
    return Section(f"{change.at} (measurement {change.index})", [Facts(facts)])


def _short(value: float) -> str:
    return f"{value:.4g}"


def _comparison(found: SideBySide) -> Document:
    table = Table.of(
        found.phases.items(),
        (name("ms a step"), lambda row: row[0]),
        (number("A"), lambda row: f"{1e3 * row[1].a_s:.4g}"),
        (number("B"), lambda row: f"{1e3 * row[1].b_s:.4g}"),
        (number("difference"), lambda row: f"{1e3 * row[1].difference_s:+.3g}"),
        ("interval", lambda row: _interval_ms(row[1].low_s, row[1].high_s)),
    )
    return _document(
        "Is B slower than A?",
        "comparison",
        (found.verdict, comparison_because(found)),
        [Fact("A", found.a), Fact("B", found.b), _spent(len(found.blocks), found, found.noise)],
        Section("", [TitledTable("", "", table)] if found.phases else []),
        _next(comparison_next(found)),
    )


def _interval_ms(low_s: float | None, high_s: float | None) -> str:
    return "" if low_s is None or high_s is None else f"{1e3 * low_s:+.3g} to {1e3 * high_s:+.3g}"


def _bisection(found: CommitBisection) -> Document:
    table = Table.of(
        found.suspects,
        (name("commit"), lambda suspect: suspect.commit[:10]),
        (number("probability"), lambda suspect: percent_text(suspect.probability)),
        (number("x GOOD"), lambda suspect: "not measured" if suspect.ratio is None else f"{suspect.ratio:.3f}"),
        (number("blocks"), lambda suspect: f"{suspect.blocks}"),
        ("subject", lambda suspect: suspect.subject),
    )
    skipped = [f"{item.commit[:10]} does not run: {item.because}" for item in found.skipped]
    return _document(
        "Which commit made it slower?",
        "bisection",
        (found.verdict, bisection_because(found)),
        [
            Fact("commits", f"{found.commits:,}", f"{found.unchanged:,} without a change of the code"),
            _spent(found.blocks, found, None),
        ],
        Section("", [TitledTable("", "", table)] if found.suspects else []),
        Section("", [Listing(skipped)] if skipped else []),
        _next(bisection_next(found)),
        tone="bad" if found.verdict == "several" else None,
    )


def _spent(blocks: int, found: SideBySide | CommitBisection, noise: float | None) -> Fact:
    noise_text = "" if noise is None else f", which differ by {percent_text(noise)}"
    value = f"{number_of(blocks, 'block')} of {found.steps} steps of each{noise_text}"
    return Fact("measured", value, f"{found.device_hours:.2g} device-hours")


def _skew(skew: Skew) -> Document:
    table = Table.of(
        skew.effects,
        (name("kind"), lambda effect: effect.operation),
        (name("where"), lambda effect: factors_text(effect.factors)),
        (number("x the others"), lambda effect: f"{effect.ratio:.3g}"),
        ("interval", lambda effect: f"{effect.low:.3g} to {effect.high:.3g}"),
    ).without_empty_columns()
    spread = {"location": skew.location_sd, "work": skew.work_sd, "noise": skew.noise}
    return _document(
        number_of(skew.measurements, "duration"),
        "skew",
        (skew.verdict, skew_because(skew)),
        [Fact(side, percent_text(share)) for side, share in spread.items()],
        Section("", [TitledTable("", "", table)] if skew.effects else []),
    )


def _startup(startup: Startup) -> Document:
    slowest, total = startup.slowest, duration_text(startup.total_s)
    tiles = [Fact("until the first step ended", total, f"median of {number_of(startup.attempts, 'attempt')}")]
    if startup.attempts > 1:
        run = f"{slowest.run_id}, attempt {slowest.attempt}, rank {slowest.rank}"
        tiles.append(Fact("slowest", duration_text(slowest.total_s), run))
    if startup.left_out:
        tiles.append(Fact("left out", number_of(startup.left_out, "attempt"), "without a first step"))
    return _document(
        "Time before the first step",
        "startup",
        None,
        tiles,
        Section("", [_spans(startup)]),
        Section("", list(_grown(startup))),
    )


def _spans(startup: Startup) -> TitledTable:
    rows = [
        (name, span.median_s, f"{span.p90_s:.2f}", percent_text(span.share)) for name, span in startup.spans.items()
    ]
    return TitledTable.of(
        "",
        "",
        [*rows, ("in no part", startup.unaccounted_s, "", "")],
        (name("part"), lambda row: row[0]),
        (number("median s"), lambda row: f"{row[1]:.2f}"),
        (number("90% within s"), lambda row: row[2]),
        (number("of all"), lambda row: row[3]),
    )


def _grown(startup: Startup) -> Iterator[Block]:
    if startup.against is None:
        return
    if not startup.grew:
        yield Paragraph(Cell(f"no part is significantly longer than in {startup.against}", "good"))
        return
    yield Listing([Cell(_grown_text(span), "bad") for span in startup.grew], f"Longer than in {startup.against}")
    if any(span.span == "imports" for span in startup.grew):
        command = "python -X importtime -c 'import assay.elastic.preload' 2>&1 | sort -t'|' -k2 -n"
        yield Facts([Fact("next", command)])


def _grown_text(span: GrownSpan) -> str:
    within = "one attempt on a side" if span.low is None else f"{span.low:+.2f} to {span.high:+.2f} s"
    return f"{span.span} {span.seconds:+.2f} s ({within})"


# Data and CI


def _data(changes: DataChanges) -> Document:
    return _document(
        f"{number_of(changes.rows_before, 'row')} before, {changes.rows_after:,} after",
        "data",
        (number_of(len(changes.results), "change"), data_because(changes)),
        [],
        *(
            Section(
                f"{index}. {finding.what}: {finding.kind}",
                [
                    Paragraph(data_text(finding)),
                    Facts(
                        [
                            Fact(
                                "effect",
                                f"{finding.effect:+.4g} [{finding.low:+.4g}, {finding.high:+.4g}]",
                                f"p = {finding.p_value:.2g}",
                            ),
                            *(Fact("explains", consequence) for consequence in finding.consequences),
                        ]
                    ),
                ],
            )
            for index, finding in enumerate(changes.results, 1)
        ),
        *([_moved(changes.moved)] if changes.moved is not None else []),
        tone="bad" if changes.results else "good",
    )


def _moved(moved: MovedMetric) -> Section:
    slices = [Fact(f"{item.column}={item.value}", _moved_text(item)) for item in moved.slices]
    price = "" if moved.device_hours is None else f", about {device_time_text(HOUR_S * moved.device_hours)} each"
    ablation = (
        f"train the recipe of {moved.run_id} with data.dataset={moved.dataset}, and compare it with both: if the "
        f"metric returns, the data is the cause (2 further seeds rule out chance){price}"
    )
    none = [Fact("slices", f"none of {number_of(moved.num_slices, 'slice')} moved significantly")]
    facts = [Fact("all rows", _moved_text(moved.overall)), *(slices or none), Fact("next", ablation)]
    return Section(moved.metric, [Facts(facts)])


def _moved_text(moved: MovedSlice) -> str:
    return f"{moved.before:.4f} -> {moved.after:.4f} ({moved.low:+.4f} to {moved.high:+.4f})"


def _ci(report: CiReport) -> Document:
    tiles = [
        Fact("a run", duration_text(report.wall_s), f"{number_of(report.runs, 'run')} of {report.tests:,} tests"),
        Fact("longest test", duration_text(report.floor_s), f"no run is quicker: {report.floor_test}"),
        *(Fact(part, duration_text(seconds)) for part, seconds in _ci_parts(report) if seconds is not None),
    ]
    if unknown := [part for part, seconds in _ci_parts(report) if seconds is None]:
        tiles.append(Fact("not on record", ", ".join(unknown)))
    if report.bound_s is not None:
        best = f"at best {duration_text(report.bound_s)}; --json has the tests of each"
        tiles.append(Fact(number_of(len(report.shards), "shard"), duration_text(report.shards[0].seconds), best))
    left_out = [f"{file}: many tests failed that pass in its commit's other runs" for file in report.bad_runs]
    if report.untimed_tests:
        left_out.append(f"the time of {number_of(report.untimed_tests, 'test')}, which no file states, counts as 0 s")
    return _document(
        f"CI: {number_of(report.tests, 'test')}, {number_of(report.commits, 'known commit')}",
        "ci",
        None,
        tiles,
        Section("Flaky tests", list(_flaky(report))),
        Section("", list(_order(report))),
        Section("", [_listed("Left out", left_out)] if left_out else []),
    )


def _ci_parts(report: CiReport) -> list[tuple[str, float | None]]:
    spans = report.spans
    return [
        ("in tests", spans.tests_s),
        ("set-up", spans.setup_s),
        ("call", spans.call_s),
        ("tear-down", spans.teardown_s),
        ("outside of tests", spans.outside_s),
        ("idle workers", spans.idle_s),
    ]


def _flaky(report: CiReport) -> Iterator[Block]:
    yield Paragraph(triage_text(report.flaky_because))
    if report.flaky:
        yield TitledTable.of(
            "",
            "" if len(report.flaky) <= MOST_LISTED else f"The first {MOST_LISTED} of {len(report.flaky):,}.",
            report.flaky[:MOST_LISTED],
            (number("failed"), lambda test: percent_text(test.rate)),
            ("95%", lambda test: _range(test.low, test.high)),
            (number("runs"), lambda test: f"{test.failures:,} of {test.runs:,}"),
            ("test", lambda test: test.test),
        )


def _order(report: CiReport) -> Iterator[Block]:
    if (first := report.first_failure) is not None:
        recorded, ordered = duration_text(first.recorded_s), duration_text(first.ordered_s)
        title = f"The first failure comes after {recorded}; in an order from other commits' runs after {ordered}"
        yield _listed(title, report.order)


def _ci_changed(changed: CiChanged) -> Document:
    lists = {
        "Affects every test": changed.selects_all,
        "Tests": () if changed.selects_all else changed.tests,
        "Changed, and no test imports it": changed.unreached_files,
        "Changed, and which tests read it is unknown": changed.unknown,
    }
    return _document(
        f"{number_of(len(changed.files), 'file')} changed since {changed.since[:10]}: they reach "
        f"{len(changed.tests):,} of {number_of(changed.test_files, 'test file')}",
        "ci",
        None,
        [],
        *(Section("", [_listed(title, items)]) for title, items in lists.items() if items),
    )


_DOCUMENTS: Mapping[type, Callable[[Any], Document]] = {
    FailureDiagnosis: _diagnosis,
    FixCheck: _fix,
    Symptoms: _symptoms,
    HungRanks: _hung,
    SlowChanges: _changes,
    SideBySide: _comparison,
    CommitBisection: _bisection,
    Skew: _skew,
    Startup: _startup,
    DataChanges: _data,
    CiReport: _ci,
    CiChanged: _ci_changed,
}


# All runs


def fleet_document(
    fleet: Fleet, startup: Startup | None = None, ci: CiReport | None = None, *, created_s: float = 0.0
) -> Document:
    """Return the overview of all runs; its figures, `startup` and `ci` are for pages."""
    overview = fleet.overview
    dearest = max(overview.results, key=lambda finding: finding.device_hours_a_week or 0.0, default=None)
    rate = overview.failures / overview.attempts if overview.attempts else 0.0
    pages = {
        "Failures": list(_failure_figures(fleet)),
        "Speed": list(_speed_figures(fleet)),
        "Startup": [] if startup is None else [_startup_figure(startup)],
        "CI": [] if ci is None else [_ci_figure(ci), *_flaky(ci)],
    }
    lost = "lost a week" if overview.is_of_weeks else "lost, on record"
    return Document(
        name="triage",
        title="Triage",
        kind="fleet",
        subtitle=f"{number_of(overview.runs, 'run')} on record, {utc_text(created_s)}",
        verdict=_overview_verdict(overview),
        tiles=[
            Fact("attempts that failed", percent_text(rate), f"{overview.failures:,} of {overview.attempts:,}"),
            Fact("held", device_time_text(overview.device_hours * HOUR_S), f"in {days_text(overview.days)}"),
            Fact("dearest", "—" if dearest is None else _lost_text(dearest), lost),
        ],
        sections=[
            Section("What to look at first", list(_findings(overview, lost))),
            *(Section(title, blocks, pages_only=True) for title, blocks in pages.items() if blocks),
        ],
        footer="Regenerate with: assay triage --out FILE. The same facts as JSON: assay triage --json.",
    )


def _overview_verdict(overview: TriageOverview) -> Verdict:
    if not overview.results:
        return Verdict("good", "nothing stands out", "No cause, no rise and no phase costs much device time.")
    first, faults = overview.results[0], [finding for finding in overview.results if finding.about != "spent"]
    confirmed = sum(fault.is_confirmed for fault in faults)
    word = f"{number_of(confirmed, 'finding')}, {len(faults) - confirmed} suspected"
    text = finding_text(first, attempts=overview.attempts).rstrip(".")
    return Verdict("bad" if confirmed else "open", word, f"{text}. Next: {finding_next(first)}")


def _findings(overview: TriageOverview, lost: str) -> Iterator[Block]:
    if overview.results:
        yield TitledTable.of(
            "Findings",
            "Failures without a known cause; then confirmed before suspected, the dearest first. Parts overlap.",
            overview.results,
            (number(lost), _lost_text),
            ("what", lambda finding: _colored(finding, finding_text(finding, attempts=overview.attempts))),
            (name(""), _certainty),
            ("next", finding_next),
        )
    for question, reason in overview.not_looked_at.items():
        yield Paragraph(f"No finding ({question}): {triage_text(reason)}")


def _certainty(finding: Finding) -> str:
    return "suspected" if not finding.is_confirmed else "measured" if finding.about == "spent" else "confirmed"


def _colored(finding: Finding, text: str) -> Text:
    """Return a text in the finding's tone; measured device time is not an error."""
    return text if finding.about == "spent" else Cell(text, "bad" if finding.is_confirmed else "open")


def _lost_text(finding: Finding) -> str:
    hours = finding.device_hours_a_week
    return "not on record" if hours is None else device_time_text(hours * HOUR_S)


def _failure_figures(fleet: Fleet) -> Iterator[Block]:
    table, diagnosis = fleet.table, fleet.diagnosis
    if table is None or diagnosis is None or not table.failures.sum():
        return
    if table.at_s is not None:
        yield rates_figure(table.at_s, table.failures, table.attempts)
    because = triage_text(diagnosis.because)
    yield scan_figure(diagnosis, because) if diagnosis.causes or diagnosis.ruled_out else Paragraph(because)


def _speed_figures(fleet: Fleet) -> Iterator[Block]:
    if fleet.series is not None and fleet.changes is not None and len(fleet.series.values) > 1:
        yield speed_figure(fleet.series.values, fleet.changes)


def _startup_figure(startup: Startup) -> Block:
    bars = [(name, span.median_s) for name, span in startup.spans.items()]
    bars += [("in no part", startup.unaccounted_s)] if startup.unaccounted_s else []
    caption = f"Medians of {number_of(startup.attempts, 'attempt')}; restarts count from the death before."
    return seconds_figure(bars, name="From the command to the end of the first step", caption=caption)


def _ci_figure(report: CiReport) -> Block:
    parts = _ci_parts(report)[0 if report.spans.setup_s is None else 1 :]
    known = [(part, seconds) for part, seconds in parts if seconds is not None]
    return seconds_figure(known, name="Where CI's time goes", caption="Over all files.")
