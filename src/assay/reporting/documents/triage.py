"""What each command of `assay triage` found, as a document."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from assay.base.clock import utc_text
from assay.base.units import days_text, duration_text, number_of, percent_text
from assay.records.ci_report import CiChanged, CiReport
from assay.records.commit_bisection import CommitBisection
from assay.records.data_changes import DataChanges, DataFinding, MovedMetric, MovedSlice
from assay.records.failure_causes import FailureCause, FailureDiagnosis
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
    SIGNS,
    Block,
    Cell,
    Document,
    Fact,
    FactList,
    Listing,
    Paragraph,
    Section,
    Text,
    TitledTable,
    Tone,
    Verdict,
    name,
    number,
)  # fmt: skip
from assay.reporting.documents.runs.run_verdict import incident_lines, next_commands, run_verdict
from assay.reporting.views.runs.run import RunView
from assay.reporting.views.statements import device_time_text
from assay.reporting.views.triage_statements import (
    because_text,
    data_text,
    factors_text,
    finding_certainty,
    finding_next,
    finding_text,
    moment_text,
    next_text,
    triage_text,
)  # fmt: skip
from assay.triage.overview import Fleet

HOUR_S = 3_600.0
MOST_LISTED = 10
"""Entries of a list; `--json` has all."""
TONES: dict[str, Tone] = {
    **dict.fromkeys(("cause", "several", "worse", "slower", "found"), "bad"),
    **dict.fromkeys(("nothing", "fixed", "faster", "same", "no_difference", "even"), "good"),
}
"""By verdict; others are open."""
Blocks = tuple[str, Sequence[Block]]
"""A section's title and blocks."""


def triage_document(found: Any) -> Document:
    """Return the document of a record, or of a list of guards."""
    return _guards(found) if isinstance(found, list) else _DOCUMENTS[type(found)](found)


def _document(title: str, verdict: Verdict | None, tiles: Sequence[Fact], sections: Iterable[Blocks]) -> Document:
    shown = [Section(heading, blocks) for heading, blocks in sections if blocks]
    return Document(title=title, kind="triage", verdict=verdict, tiles=tiles, sections=shown)


def _verdict(found: Any, word: str = "", tone: Tone | None = None) -> Verdict:
    """Return a record's verdict with its reason."""
    word = word or found.verdict
    return Verdict(tone or TONES.get(word, "open"), word, because_text(found))


def _table(rows: Iterable[Any], *columns: Any) -> list[Block]:
    table = TitledTable.of("", "", rows, *columns)
    return [table] if table.table.rows else []


def _facts(*facts: Fact) -> list[Block]:
    return [FactList(facts)] if facts else []


def _listed(title: str, items: Sequence[str]) -> list[Block]:
    rest = [f"and {len(items) - MOST_LISTED:,} more (--json)"] if len(items) > MOST_LISTED else []
    return [Listing([*items[:MOST_LISTED], *rest], title=title)] if items else []


def _numbers(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers)) or "none"


def _range(low: float | None, high: float | None, text: Callable[[float], str] = percent_text) -> str:
    return "" if low is None or high is None else f"{text(low)} to {text(high)}"


# Failures


def _diagnosis(found: FailureDiagnosis) -> Document:
    before = "" if found.baseline_rate is None else f"before: {percent_text(found.baseline_rate)}"
    tiles = [
        Fact("rate", percent_text(found.rate), before),
        Fact("units", f"{found.units:,}", f"correlation {found.unit_correlation:.2f}"),
    ]
    ruled_out = _table(
        found.ruled_out,
        (name("region"), lambda item: factors_text(item.factors)),
        (number("failed"), lambda item: f"{item.failures:,} of {item.attempts:,}"),
        (number("rate"), lambda item: percent_text(item.rate)),
        (number("elsewhere"), lambda item: percent_text(item.elsewhere_rate)),
        ("because", lambda item: triage_text(item.because)),
    )
    reasons: dict[str, list[str]] = {}
    for factor, reason in found.left_out.items():
        reasons.setdefault(triage_text(reason), []).append(factor)
    left_out = [Listing([f"{', '.join(factors)}: {reason}" for reason, factors in reasons.items()])] if reasons else []
    causes = [_cause(index, cause) for index, cause in enumerate(found.causes, 1)]
    title = f"{found.failures:,} of {found.attempts:,} attempts failed"
    verdict = _verdict(found, tone="open" if found.verdict == "nothing" and found.failures else None)
    return _document(title, verdict, tiles, [*causes, ("Ruled out", ruled_out), ("Not scanned", left_out)])


def _cause(index: int, cause: FailureCause) -> Blocks:
    suspected = "" if cause.is_confirmed else "suspected, "
    failed = f"{cause.failures:,} of {cause.attempts:,} attempts in {number_of(cause.units, 'unit')}"
    rate = f"{percent_text(cause.rate)} [{_range(cause.rate_low, cause.rate_high)}]"
    rest = f"elsewhere {percent_text(cause.elsewhere_rate)}; {percent_text(cause.share_of_excess)} of the excess"
    facts = [Fact("failed", f"{failed}: {rate}", rest)]
    for ratio in cause.adjustments:
        within = f"within {', '.join(ratio.within)}" if ratio.within else "to all others"
        facts.append(Fact("ratio", f"{ratio.ratio:.1f} ({ratio.low:.1f} to {ratio.high:.1f})", within))
    facts += [Fact("not told apart from", factors_text(tie)) for tie in cause.ties]
    if cause.lost_device_hours is not None:
        facts.append(Fact("cost", device_time_text(HOUR_S * cause.lost_device_hours)))
    heading = f"{index}. {factors_text(cause.factors)} ({suspected}p = {cause.p_value:.2g})"
    return heading, _facts(*facts, Fact("next", triage_text(cause.next)))


def _fix(check: FixCheck) -> Document:
    tiles = []
    if check.baseline_rate is not None:
        within = f"({_range(check.baseline_low, check.baseline_high)})"
        note = f"of {check.baseline_attempts:,} attempts {within}; correlation in units {check.unit_correlation:.2f}"
        tiles.append(Fact("before", percent_text(check.baseline_rate), note))
    if check.rate is not None:
        tiles.append(Fact("since", percent_text(check.rate), f"{check.failures:,} of {check.attempts:,} failed"))
    after = "" if check.decided_after is None else f", reached after {number_of(check.decided_after, 'attempt')}"
    tiles.append(Fact("evidence that it is fixed", f"{check.e_value:.3g}", f"decides at 20{after}"))
    tiles.append(Fact("evidence that it is worse", f"{check.worse_e_value:.3g}"))
    return _document("Did the fix work?", _verdict(check), tiles, [])


def _guards(statuses: Sequence[GuardStatus]) -> Document:
    table = _table(
        statuses,
        (name("guard"), lambda status: status.guard.name),
        (name(""), _guard_state),
        (number("failed"), lambda status: percent_text(status.guard.rate)),
        (number("elsewhere"), lambda status: percent_text(status.guard.elsewhere_rate)),
        ("accepted", lambda status: f"{utc_text(status.guard.accepted_s)} by {status.guard.accepted_by}"),
        ("since then", _guard_evidence),
    )
    none = [Paragraph("'assay triage guard DIAGNOSIS' accepts what 'triage failures --json' found.")]
    return _document("Guards" if table else "no guard stands", None, [], [("", table or none)])


def _guard_state(status: GuardStatus) -> Cell:
    if status.has_lapsed:
        return Cell("lapsed", "good")
    return Cell("refuses runs", "bad") if status.guard.is_refusing else Cell("warns of runs", "open")


def _guard_evidence(status: GuardStatus) -> str:
    if (check := status.since) is None:
        return "no attempt on record is on it, so nothing can be said; 'assay triage guard --lift' ends it"
    return f"{check.failures:,} of {check.attempts:,} attempts on it failed; {because_text(check)}"


# Symptoms and hangs


def _symptoms(found: Symptoms) -> Document:
    alike: list[Blocks] = [
        ("", [Listing([*item.paths, *item.runs], f"{item.count} alike, {item.symptom_class}: {item.key}")])
        for item in found.signatures
        if item.count > 1
    ]
    sections: list[Blocks] = [("", [_log(log)]) for log in found.logs]
    if found.failures:
        sections.append(("Failures on record", [Listing(list(map(_failure_text, found.failures)))]))
        if not found.shared and found.shared_because is not None:
            alike.append(("", [Paragraph(f"no cause is shared: {triage_text(found.shared_because)}")]))
    title = f"{number_of(len(found.logs), 'log')}, {number_of(len(found.failures), 'failure')} on record"
    return _document(title, None, [], [*sections, *alike, *(("", [_shared(cause)]) for cause in found.shared)])


def _log(log: LogSymptom) -> Listing:
    lines = [f"line {candidate.line:,}: {candidate.text}" for candidate in log.candidates]
    role = f" ({log.role})" if log.role else ""
    return Listing(lines or [f"no line of {log.num_lines:,} names a failure"], f"{log.path}: {log.symptom_class}{role}")


def _failure_text(failure: RecordedSymptom) -> str:
    where = [failure.run_id]
    where += [f"attempt {failure.attempt}"] if failure.attempt is not None else []
    where += [f"step {failure.step}"] if failure.step is not None else []
    where += [f"rank {failure.rank} on {failure.host}"] if failure.rank is not None else []
    return f"{', '.join(where)}: {failure.symptom_class}: {failure.text}"


def _shared(shared: SharedCause) -> Listing:
    named = [factors_text(shared.factors)] if shared.factors else []
    named += [f"since {utc_text(shared.onset_s)}"] if shared.onset_s is not None else []
    if shared.p_value is None:
        certainty, evidence = "have", f"replays of {', '.join(shared.runs)}"
    else:
        certainty, evidence = "may have", f"p = {shared.p_value:.2g}"
    title = f"{len(shared.signatures)} signatures {certainty} one cause, {' + '.join(named)} ({evidence})"
    return Listing(shared.signatures, title=title)


def _hung(found: HungRanks) -> Document:
    word = f"ranks {_numbers(found.ranks)}" if found.ranks else "no rank could be named"
    verdict = _verdict(found, word, "bad" if found.ranks else "open")
    return _document("Who blocks the others?", verdict, [], map(_hung_group, found.groups))


def _hung_group(group: HungGroup) -> Blocks:
    facts = [Fact("wait", _numbers(group.waiting)), Fact("never entered it", _numbers(group.absent))]
    facts += [Fact("not begun by the device of", _numbers(group.not_started))] if group.not_started else []
    facts += [Fact("nothing after it from", _numbers(group.stopped))] if group.stopped else []
    facts += [Fact(f"entered {called} instead", _numbers(ranks)) for called, ranks in group.others.items()]
    facts += [Fact("no dump of", _numbers(group.without_dump))] if group.without_dump else []
    return f"group {group.group}, collective {group.sequence}, {group.collective}", _facts(*facts)


# Speed


def _changes(found: SlowChanges) -> Document:
    noise = Fact("noise", f"{found.noise:.3g}", f"correlation {found.correlation:.2f}")
    tiles = [Fact("measurements", f"{found.measurements:,}"), noise]
    verdict = _verdict(found, number_of(len(found.changes), "change"))
    return _document(found.value, verdict, tiles, map(_change, found.changes))


def _change(change: SlowChange) -> Blocks:
    interval = _range(change.low, change.high, lambda value: f"{value:.4g}")
    times = "" if change.ratio is None else f"x {change.ratio:.4g} [{interval}]"
    tone: Tone = "bad" if change.verdict == "assigned" else "open"
    facts = [
        Fact("size", f"{change.before:.4g} -> {change.after:.4g}", times),
        Fact("verdict", Cell(f"{change.verdict}: {because_text(change)}", tone)),
    ]
    facts += [Fact("most of it in", change.phase)] if change.phase is not None else []
    facts += [Fact(factor, f"{was or '(none)'} -> {now or '(none)'}") for factor, (was, now) in change.changed.items()]
    facts += [Fact(f"due to {factor}", f"{effect:.4g}") for factor, effect in change.assigned.items()]
    return f"{moment_text(change.at)} (measurement {change.index})", _facts(*facts, Fact("next", next_text(change)))


def _comparison(found: SideBySide) -> Document:
    table = _table(
        found.phases.items(),
        (name("ms a step"), lambda row: row[0]),
        (number("A"), lambda row: f"{1e3 * row[1].a_s:.4g}"),
        (number("B"), lambda row: f"{1e3 * row[1].b_s:.4g}"),
        (number("difference"), lambda row: f"{1e3 * row[1].difference_s:+.3g}"),
        ("interval", lambda row: _range(row[1].low_s, row[1].high_s, lambda seconds: f"{1e3 * seconds:+.3g}")),
    )
    noise = "" if found.noise is None else f", which differ by {percent_text(found.noise)}"
    tiles = [Fact("A", found.a), Fact("B", found.b), _measured(len(found.blocks), found, noise)]
    sections = [("", table), ("", _facts(Fact("next", next_text(found))))]
    return _document("Is B slower than A?", _verdict(found), tiles, sections)


def _bisection(found: CommitBisection) -> Document:
    table = _table(
        found.suspects,
        (name("commit"), lambda suspect: suspect.commit[:10]),
        (number("probability"), lambda suspect: percent_text(suspect.probability)),
        (number("x GOOD"), lambda suspect: "not measured" if suspect.ratio is None else f"{suspect.ratio:.3f}"),
        (number("blocks"), lambda suspect: f"{suspect.blocks}"),
        ("subject", lambda suspect: suspect.subject),
    )
    skipped = [f"{item.commit[:10]} does not run: {item.because}" for item in found.skipped]
    unchanged = Fact("commits", f"{found.commits:,}", f"{found.unchanged:,} without a change of the code")
    sections = [("", table), ("", _listed("Skipped", skipped)), ("", _facts(Fact("next", next_text(found))))]
    tiles = [unchanged, _measured(found.blocks, found, "")]
    return _document("Which commit made it slower?", _verdict(found), tiles, sections)


def _measured(blocks: int, found: SideBySide | CommitBisection, noise: str) -> Fact:
    value = f"{number_of(blocks, 'block')} of {found.steps} steps of each{noise}"
    return Fact("measured", value, f"{found.device_hours:.2g} device-hours")


def _skew(skew: Skew) -> Document:
    table = _table(
        skew.effects,
        (name("kind"), lambda effect: effect.operation),
        (name("where"), lambda effect: factors_text(effect.factors)),
        (number("x the others"), lambda effect: f"{effect.ratio:.3g}"),
        ("interval", lambda effect: _range(effect.low, effect.high, lambda ratio: f"{ratio:.3g}")),
    )
    deviations = {"location": skew.location_sd, "work": skew.work_sd, "noise": skew.noise}
    tiles = [Fact(side, percent_text(share)) for side, share in deviations.items()]
    return _document(number_of(skew.measurements, "duration"), _verdict(skew), tiles, [("", table)])


def _startup(startup: Startup) -> Document:
    slowest, median = startup.slowest, f"median of {number_of(startup.attempts, 'attempt')}"
    tiles = [Fact("until the first step ended", duration_text(startup.total_s), median)]
    if startup.attempts > 1:
        run = f"{slowest.run_id}, attempt {slowest.attempt}, rank {slowest.rank}"
        tiles.append(Fact("slowest", duration_text(slowest.total_s), run))
    if startup.left_out:
        tiles.append(Fact("left out", number_of(startup.left_out, "attempt"), "without a first step"))
    spans = [
        (part, span.median_s, f"{span.p90_s:.2f}", percent_text(span.share)) for part, span in startup.spans.items()
    ]
    table = _table(
        [*spans, ("in no part", startup.unaccounted_s, "", "")],
        (name("part"), lambda row: row[0]),
        (number("median s"), lambda row: f"{row[1]:.2f}"),
        (number("90% within s"), lambda row: row[2]),
        (number("of all"), lambda row: row[3]),
    )
    return _document("Time before the first step", None, tiles, [("", table), ("", list(_grown(startup)))])


def _grown(startup: Startup) -> Iterator[Block]:
    if startup.against is not None and not startup.grew:
        yield Paragraph(Cell(f"no part is significantly longer than in {startup.against}", "good"))
    if startup.grew:
        yield Listing([Cell(_grown_text(span), "bad") for span in startup.grew], f"Longer than in {startup.against}")
    if any(span.span == "imports" for span in startup.grew):
        command = "python -X importtime -c 'import assay.elastic.preload' 2>&1 | sort -t'|' -k2 -n"
        yield from _facts(Fact("next", command))


def _grown_text(span: GrownSpan) -> str:
    within = "one attempt on a side" if span.low is None else f"{span.low:+.2f} to {span.high:+.2f} s"
    return f"{span.span} {span.seconds:+.2f} s ({within})"


# Data and CI


def _data(changes: DataChanges) -> Document:
    title = f"{number_of(changes.rows_before, 'row')} before, {changes.rows_after:,} after"
    word = number_of(len(changes.results), "change")
    tone: Tone = "bad" if changes.results else "good"
    sections = [_data_finding(index, finding) for index, finding in enumerate(changes.results, 1)]
    sections += [_moved(changes.moved)] if changes.moved is not None else []
    return _document(title, _verdict(changes, word, tone), [], sections)


def _data_finding(index: int, finding: DataFinding) -> Blocks:
    effect = f"{finding.effect:+.4g} [{finding.low:+.4g}, {finding.high:+.4g}]"
    facts = [Fact("effect", effect, f"p = {finding.p_value:.2g}")]
    facts += [Fact("explains", consequence) for consequence in finding.consequences]
    return f"{index}. {finding.what}: {finding.kind}", [Paragraph(data_text(finding)), FactList(facts)]


def _moved(moved: MovedMetric) -> Blocks:
    slices = [Fact(f"{item.column}={item.value}", _moved_text(item)) for item in moved.slices]
    none = [Fact("slices", f"none of {number_of(moved.num_slices, 'slice')} moved significantly")]
    price = "" if moved.device_hours is None else f", about {device_time_text(HOUR_S * moved.device_hours)} each"
    ablation = (
        f"train the recipe of {moved.run_id} with data.dataset={moved.dataset}, and compare it with both: if the "
        f"metric returns, the data is the cause (2 further seeds rule out chance){price}"
    )
    facts = [Fact("all rows", _moved_text(moved.overall)), *(slices or none), Fact("next", ablation)]
    return moved.metric, _facts(*facts)


def _moved_text(moved: MovedSlice) -> str:
    return f"{moved.before:.4f} -> {moved.after:.4f} ({moved.low:+.4f} to {moved.high:+.4f})"


def _ci(report: CiReport) -> Document:
    parts = _ci_parts(report)
    tiles = [
        Fact("a run", duration_text(report.wall_s), f"{number_of(report.runs, 'run')} of {report.tests:,} tests"),
        Fact("longest test", duration_text(report.floor_s), f"no run is quicker: {report.floor_test}"),
        *(Fact(part, duration_text(seconds)) for part, seconds in parts.items() if seconds is not None),
    ]
    if unknown := [part for part, seconds in parts.items() if seconds is None]:
        tiles.append(Fact("not on record", ", ".join(unknown)))
    if report.bound_s is not None:
        best = f"at best {duration_text(report.bound_s)}; --json has the tests of each"
        tiles.append(Fact(number_of(len(report.shards), "shard"), duration_text(report.shards[0].seconds), best))
    left_out = [f"{file}: many tests failed that pass in its commit's other runs" for file in report.bad_runs]
    if report.untimed_tests:
        left_out.append(f"the time of {number_of(report.untimed_tests, 'test')}, which no file states, counts as 0 s")
    title = f"CI: {number_of(report.tests, 'test')}, {number_of(report.commits, 'known commit')}"
    sections = [("Flaky tests", _flaky(report)), ("", _listed("Left out", left_out))]
    return _document(title, None, tiles, sections)


def _ci_parts(report: CiReport) -> dict[str, float | None]:
    spans = report.spans
    return {
        "in tests": spans.tests_s, "set-up": spans.setup_s, "call": spans.call_s, "tear-down": spans.teardown_s,
        "outside of tests": spans.outside_s, "idle workers": spans.idle_s,
    }  # fmt: skip


def _flaky(report: CiReport) -> list[Block]:
    table = _table(
        report.flaky[:MOST_LISTED],
        (number("failed"), lambda test: percent_text(test.rate)),
        ("95%", lambda test: _range(test.low, test.high)),
        (number("runs"), lambda test: f"{test.failures:,} of {test.runs:,}"),
        ("test", lambda test: test.test),
    )
    more = len(report.flaky) - MOST_LISTED
    return [Paragraph(because_text(report)), *table, *([Paragraph(f"and {more:,} more (--json)")] if more > 0 else [])]


def _ci_changed(changed: CiChanged) -> Document:
    lists = {
        "Affects every test": changed.selects_all,
        "Tests": () if changed.selects_all else changed.tests,
        "Changed, and no test imports it": changed.unreached_files,
        "Changed, and which tests read it is unknown": changed.unknown,
    }
    reached = f"{len(changed.tests):,} of {number_of(changed.test_files, 'test file')}"
    title = f"{number_of(len(changed.files), 'file')} changed since {changed.since[:10]}: they reach {reached}"
    return _document(title, None, [], (("", _listed(heading, items)) for heading, items in lists.items()))


_DOCUMENTS: Mapping[type, Callable[[Any], Document]] = {
    FailureDiagnosis: _diagnosis, FixCheck: _fix, Symptoms: _symptoms, HungRanks: _hung, SlowChanges: _changes,
    SideBySide: _comparison, CommitBisection: _bisection, Skew: _skew, Startup: _startup, DataChanges: _data,
    CiReport: _ci, CiChanged: _ci_changed,
}  # fmt: skip


# All runs


def fleet_document(
    fleet: Fleet,
    runs: Sequence[RunView] = (),
    startup: Startup | None = None,
    ci: CiReport | None = None,
    *,
    created_s: float = 0.0,
) -> Document:
    """Return the overview of all runs, and first what happened to each of a few `runs`; its figures, `startup` and
    `ci` are for pages."""
    overview, verdicts = fleet.overview, _run_verdicts(runs)
    dearest = max(overview.results, key=lambda finding: finding.device_hours_a_week or 0.0, default=None)
    rate = overview.failures / overview.attempts if overview.attempts else 0.0
    span = "a week" if overview.is_of_weeks else "on record"
    pages: dict[str, list[Block]] = {
        "Failures": list(_failure_figures(fleet)),
        "Speed": [],
        "Startup": [] if startup is None else [_startup_figure(startup)],
        "CI": [] if ci is None else [_ci_figure(ci), *_flaky(ci)],
    }
    if fleet.series is not None and fleet.changes is not None and len(fleet.series.values) > 1:
        pages["Speed"] = [speed_figure(fleet.series.values, fleet.changes)]
    return Document(
        name="triage",
        title="Triage",
        kind="fleet",
        subtitle=f"{number_of(overview.runs, 'run')} on record, {utc_text(created_s)}",
        verdict=_overview_verdict(overview, verdicts),
        tiles=[
            Fact("attempts that failed", percent_text(rate), f"{overview.failures:,} of {overview.attempts:,}"),
            Fact("held", device_time_text(overview.device_hours * HOUR_S), f"in {days_text(overview.days)}"),
            Fact("largest cost", "—" if dearest is None else _cost_text(dearest), span),
        ],
        sections=[
            *(Section(title, blocks) for title, blocks in _happened(verdicts)),
            Section("What cost device time" if verdicts else "What to look at first", list(_results(overview, span))),
            *(Section(title, blocks, pages_only=True) for title, blocks in pages.items() if blocks),
        ],
        footer="Regenerate with: assay triage --out FILE. The same facts as JSON: assay triage --json.",
    )


def _overview_verdict(overview: TriageOverview, verdicts: Sequence[tuple[RunView, Verdict]]) -> Verdict:
    if verdicts:
        words = Counter(verdict.word for _, verdict in verdicts)
        failed = (
            f"{overview.failures:,} of {number_of(overview.attempts, 'attempt')}" if overview.failures else "No attempt"
        )
        ends = ", ".join(f"{count:,} {word}" for word, count in words.items())
        return Verdict(verdicts[0][1].tone, ends, f"{failed} failed.")
    faults = [finding for finding in overview.results if finding.about != "spent"]
    if not overview.results:
        return Verdict("good", "nothing stands out", "No cause, no rise and no phase costs much device time.")
    confirmed = [fault for fault in faults if fault.is_confirmed]
    word = f"{number_of(len(confirmed), 'confirmed finding')}, {number_of(len(faults) - len(confirmed), 'other')}"
    first = next(iter(faults), overview.results[0])
    text = finding_text(first, attempts=overview.attempts).rstrip(".")
    tone: Tone = "bad" if (faults and overview.failures) or confirmed else "open"
    return Verdict(tone, word, f"{text[:1].upper()}{text[1:]}. Next: {finding_next(first)}")


def _run_verdicts(runs: Sequence[RunView]) -> list[tuple[RunView, Verdict]]:
    """Return runs with their verdicts, the worst first."""
    tones = tuple(SIGNS)
    return sorted(((run, run_verdict(run)) for run in runs), key=lambda pair: -tones.index(pair[1].tone))


def _happened(verdicts: Sequence[tuple[RunView, Verdict]]) -> Iterator[Blocks]:
    """Yield what happened to each of a few runs, the worst first."""
    for run, verdict in verdicts:
        text = f"{verdict.word}: {verdict.sentence} Next: {next_commands(run)[0][1]}"
        lines = incident_lines(run)
        yield run.run_id, [Paragraph(text), *([Listing(lines)] if lines else [])]


def _results(overview: TriageOverview, span: str) -> Iterator[Block]:
    if overview.results:
        yield TitledTable.of(
            "",
            "By device time, the most first. Parts overlap.",
            overview.results,
            (number(f"cost {span}"), _cost_text),
            ("what", lambda finding: _coloured(finding, finding_text(finding, attempts=overview.attempts))),
            (name(""), finding_certainty),
            ("next", finding_next),
        )
    for question, reason in overview.not_looked_at.items():
        yield Paragraph(f"No finding ({question}): {triage_text(reason)}")


def _coloured(finding: Finding, text: str) -> Text:
    """Return a text in the finding's tone; measured device time is not an error."""
    return text if finding.about == "spent" else Cell(text, "bad" if finding.is_confirmed else "open")


def _cost_text(finding: Finding) -> str:
    hours = finding.device_hours_a_week
    return "not on record" if hours is None else device_time_text(hours * HOUR_S)


def _failure_figures(fleet: Fleet) -> Iterator[Block]:
    table, diagnosis = fleet.table, fleet.diagnosis
    if table is not None and diagnosis is not None and table.failures.sum():
        if table.at_s is not None:
            yield rates_figure(table.at_s, table.failures, table.attempts)
        because = because_text(diagnosis)
        yield scan_figure(diagnosis, because) if diagnosis.causes or diagnosis.ruled_out else Paragraph(because)


def _startup_figure(startup: Startup) -> Block:
    bars = [(part, span.median_s) for part, span in startup.spans.items()]
    bars += [("in no part", startup.unaccounted_s)] if startup.unaccounted_s else []
    caption = f"Medians of {number_of(startup.attempts, 'attempt')}; restarts count from the death before."
    return seconds_figure(bars, name="From the command to the end of the first step", caption=caption)


def _ci_figure(report: CiReport) -> Block:
    parts = [(part, seconds) for part, seconds in _ci_parts(report).items() if seconds is not None]
    # What is known by phase is not shown a second time as a whole.
    known = parts if report.spans.setup_s is None else parts[1:]
    return seconds_figure(known, name="Where CI's time goes", caption="Over all files.")
