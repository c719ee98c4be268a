"""Diagnoses the failures of a table of attempts.

scan -> best region -> significant (p), and not explained by other factors or time (strata)? -> its ties
     -> scan of the attempts outside, until nothing is significant
"""

from collections.abc import ItemsView, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.special import betaincinv, gammaincinv

from assay.base.clock import utc_text
from assay.base.errors import ConfigError, DataError
from assay.base.shapes import Bool, Float64, Int64
from assay.records.failure_causes import AdjustedRatio, FailureCause, FailureDiagnosis, FailureVerdict, RuledOut
from assay.records.statement import Statement
from assay.triage.attempts.moments import TimeWindow
from assay.triage.attempts.table import AttemptTable
from assay.triage.failures.adjusted import TIME, Rival, adjustments, rival_of
from assay.triage.failures.regions import MIN_UNITS
from assay.triage.failures.scan import Region, Scan, expected_failures, scan

TAIL = 0.025
SEPARATING_ATTEMPTS = 3.0
"""Expected failures after which a run without failures clears a side (95%)."""


def region_factors(table: AttemptTable, region: Region) -> dict[str, str]:
    """Return factor -> value of a region."""
    return {
        table.factors[index].name: table.factors[index].values[value]
        for index, value in zip(region.factors, region.values, strict=True)
    }


def region_rates(table: AttemptTable, inside: Bool[np.ndarray, "row"]) -> tuple[float, float]:
    """Return the failure rates inside and outside."""
    size = table.size()
    return tuple(  # type: ignore[return-value]
        float(table.failures[side].sum()) / max(float(size[side].sum()), 1e-12) for side in (inside, ~inside)
    )


def cause_of(
    table: AttemptTable,
    region: Region,
    ratios: tuple[AdjustedRatio, ...],
    classified: "_ClassifiedRegions",
    found: Scan,
    *,
    is_confirmed: bool,
    rival: Rival | None = None,
) -> FailureCause:
    """Build the record."""
    ties, is_inseparable = _ties(table, region, classified, found)
    inside = region.inside(table)
    rate, elsewhere = region_rates(table, inside)
    low, high = _interval(table, inside, found.weights)
    adjusted = ratios[-1] if len(ratios) > 1 else None
    factors = region_factors(table, region)
    return FailureCause(
        factors=factors, is_confirmed=is_confirmed, p_value=found.p_value(region.score),
        attempts=int(table.attempts[inside].sum()), failures=int(table.failures[inside].sum()),
        units=len(np.unique(table.units[inside])), rate=rate, rate_low=low, rate_high=high, elsewhere_rate=elsewhere,
        adjusted_ratio=None if adjusted is None else adjusted.ratio,
        adjusted_low=None if adjusted is None else adjusted.low,
        adjusted_high=None if adjusted is None else adjusted.high, adjustments=ratios,
        share_of_excess=min(max(region.share, 0.0), 1.0), evidence=region.llr, ties=tuple(ties),
        is_inseparable=is_inseparable, lost_device_hours=_lost_device_hours(table, inside, rate, elsewhere),
        next=_next(table, factors, ties[0] if is_inseparable else None, rival, rate),
    )  # fmt: skip


def _interval(
    table: AttemptTable, inside: Bool[np.ndarray, "row"], weights: Float64[np.ndarray, "row"]
) -> tuple[float, float]:
    """Return the 95% interval at the effective number of attempts: Clopper & Pearson's, or Garwood's for a
    rate per exposure."""
    size = float((table.size() * weights)[inside].sum())
    failed = float((table.failures * weights)[inside].sum())
    if table.exposure is not None:
        low = float(gammaincinv(failed, TAIL)) / size if failed > 0 else 0.0
        return low, float(gammaincinv(failed + 1.0, 1.0 - TAIL)) / size
    passed = max(size - failed, 0.0)
    low = float(betaincinv(failed, passed + 1.0, TAIL)) if failed > 0 else 0.0
    return low, float(betaincinv(failed + 1.0, passed, 1.0 - TAIL)) if passed > 0 else 1.0


def _lost_device_hours(
    table: AttemptTable, inside: Bool[np.ndarray, "row"], rate: float, elsewhere: float
) -> float | None:
    hours = table.device_hours if table.lost_device_hours is None else table.lost_device_hours
    if hours is None or rate <= 0:
        return None
    failed = float((hours * table.failures / table.attempts)[inside].sum())
    return failed * max(1.0 - elsewhere / rate, 0.0)


def _next(
    table: AttemptTable, factors: dict[str, str], tie: dict[str, str] | None, rival: Rival | None, rate: float
) -> Statement:
    """Return the cheapest experiment that separates a rival or an inseparable tie, or else one that confirms the
    fix."""
    number = max(int(np.ceil(SEPARATING_ATTEMPTS / max(min(rate, 1.0), 1e-3))), 1)
    hours = None
    if table.device_hours is not None:
        hours = number * float(np.median(table.device_hours / table.attempts))
    values: dict[str, Any] = {"attempts": number, "device_hours": hours}
    if rival is not None:
        return Statement(code="compare", values={**values, "factors": factors, "within": list(rival.within)})
    if tie is None:
        return Statement(code="avoid and check", values={**values, "factors": factors})
    ours, others = factors.items(), tie.items()
    return Statement(code="separate", values={**values, "with": dict(ours - others), "without": dict(others - ours)})


LEVEL = 0.05
MAX_CAUSES = 3
MAX_EXAMINED, MAX_CANDIDATES = 30, 12
"""Maximal number of regions examined, and of regions without another explanation."""
SAME_LLR = 2.0
"""Regions within this log likelihood ratio that share most failures are one finding."""
SAME_FAILURES = 0.7
"""Minimal shared share of failures of tied regions."""
MAX_TIES = 12


Candidate = tuple[Region, tuple[AdjustedRatio, ...]]
"""A region that no other factor explains, with its ratios."""


class _ClassifiedRegions(NamedTuple):
    """The regions of one scan, classified."""

    candidates: list[Candidate]
    refined: list[Candidate]
    """Regions of several factors, one of which has no visible effect: alternative names, unless nothing else
    remains."""
    ruled_out: list[RuledOut]


def diagnose(
    table: AttemptTable, *, window: TimeWindow | None, baseline: TimeWindow | None, rng: np.random.Generator
) -> FailureDiagnosis:
    """Diagnose the failures of a table, or of a window of it."""
    chosen, before = _windows(table, window, baseline)
    left_out = _left_out(chosen)
    if (problem := _nothing_to_scan(chosen, left_out)) is not None:
        return _record(chosen, before, problem, left_out)
    expected = None if before is None else expected_failures(chosen, before)
    first = scan(chosen, expected, rng=rng)
    if not first.regions:
        return _record(chosen, before, Statement(code="no region"), left_out, scanned=first)
    causes, ruled_out, rest, found = list[FailureCause](), list[RuledOut](), chosen, first
    while len(causes) < MAX_CAUSES and found.p_value(found.regions[0].score) <= LEVEL:
        classified = _classify_regions(rest, found, is_surge=expected is not None, known=ruled_out)
        ruled_out += classified.ruled_out
        chosen_region = _first_without_rival(rest, classified, found, is_surge=expected is not None)
        if chosen_region is None:
            break
        (region, ratios), rival = chosen_region
        is_confirmed = rival is None
        causes.append(cause_of(rest, region, ratios, classified, found, is_confirmed=is_confirmed, rival=rival))
        if rival is not None:
            break
        outside = ~region.inside(rest)
        rest = rest.where(outside)
        expected = None if expected is None else expected[outside]
        if rest.num_units() < 2 * MIN_UNITS or rest.failures.sum() == 0:
            break
        found = scan(rest, expected, rng=rng)
        if not found.regions:
            break
    if before is not None:
        causes += _suspected(chosen, first, causes)
    because = _reason(first, causes)
    return _record(chosen, before, because, left_out, scanned=first, causes=causes, ruled_out=ruled_out)


def _first_without_rival(
    table: AttemptTable, classified: "_ClassifiedRegions", found: Scan, *, is_surge: bool
) -> tuple[Candidate, Rival | None] | None:
    """Return the first significant region that has no rival; if all have one, the first region and its rival."""
    first = None
    significant = [
        candidate
        for candidate in (*classified.candidates, *classified.refined[:1])
        if found.p_value(candidate[0].score) <= LEVEL
    ]
    for number, (region, ratios) in enumerate(significant, 1):
        inside = region.inside(table)
        level = LEVEL / number
        rival = None if is_surge else rival_of(table, inside, region.factors, found.weights, level=level)
        if rival is None:
            return (region, ratios), None
        if first is None:
            first = (region, (*ratios, *([] if rival.ratio is None else [rival.ratio]))), rival
    return first


def _suspected(table: AttemptTable, found: Scan, causes: list[FailureCause]) -> list[FailureCause]:
    """In a surge, return the regions to examine next, whether or not the scan is significant."""
    classified = _classify_regions(table, found, is_surge=True)
    named = [known for cause in causes for known in (cause.factors, *cause.ties)]
    suspected = list[FailureCause]()
    for region, ratios in classified.candidates:
        if len(causes) + len(suspected) == MAX_CAUSES:
            break
        if region_factors(table, region) not in named:
            suspected.append(cause_of(table, region, ratios, classified, found, is_confirmed=False))
            named += [suspected[-1].factors, *suspected[-1].ties]
    return suspected


def _windows(
    table: AttemptTable, window: TimeWindow | None, baseline: TimeWindow | None
) -> tuple[AttemptTable, AttemptTable | None]:
    if table.at_s is None and (window or baseline):
        raise ConfigError("--window and --baseline need to know when attempts were made: give --at.")
    if baseline is not None and window is None:
        raise ConfigError("--baseline is what a --window is held against: give both.")
    parts: list[AttemptTable] = []
    for option, part_window in (("--window", window), ("--baseline", baseline)):
        if part_window is not None:
            assert table.at_s is not None
            parts.append(table.where(part_window.holds(table.at_s)))
            if parts[-1].num_rows == 0:
                raise DataError(f"{option} {part_window.text}: no attempt is in it; {_span_text(table.at_s)}.")
    return (parts[0] if parts else table), (parts[1] if len(parts) > 1 else None)


def _span_text(at_s: Float64[np.ndarray, "row"]) -> str:
    if np.isnan(at_s).all():
        return "the table has none"
    return f"the table's are from {utc_text(float(np.nanmin(at_s)))} to {utc_text(float(np.nanmax(at_s)))}"


def _left_out(table: AttemptTable) -> dict[str, Statement]:
    """Return factors that no scan can test, with the reason."""
    found = {}
    for factor in table.factors:
        counts = np.bincount(factor.codes, table.attempts[factor.rows], minlength=len(factor.values))
        present = int((counts > 0).sum())
        if present == 0:
            found[factor.name] = Statement(code="no value")
        elif present == 1 and len(factor.rows) == table.num_rows:
            found[factor.name] = Statement(code="one value")
        elif counts.max() < MIN_UNITS:
            found[factor.name] = Statement(code="no shared value", values={"least": MIN_UNITS})
    return found


def _not_counted(table: AttemptTable) -> dict[str, Statement]:
    """Return how many attempts are left out, or are compared with no others of their time."""
    untimed = 0 if table.at_s is None else int(table.attempts[np.isnan(table.at_s)].sum())
    found = {"preempted or cancelled": Statement(code="stopped", values={"attempts": table.num_stopped})}
    found |= {TIME: Statement(code="no time", values={"attempts": untimed})}
    return {name: reason for name, reason in found.items() if reason.values["attempts"]}


def _nothing_to_scan(table: AttemptTable, left_out: dict[str, Statement]) -> Statement | None:
    """Return why nothing can be found."""
    if table.num_rows == 0:
        return Statement(code="no attempt")
    if table.failures.sum() == 0:
        return Statement(code="no failure")
    if table.exposure is None and (table.failures == table.attempts).all():
        return Statement(code="all failed")
    if table.has_units and table.num_units() < MIN_UNITS:
        return Statement(code="few units", values={"units": table.num_units(), "least": MIN_UNITS})
    if len(left_out) == len(table.factors):
        reasons = {name: reason.model_dump() for name, reason in left_out.items()}
        return Statement(code="no factor", values={"reasons": reasons})
    return None


def _classify_regions(
    table: AttemptTable, found: Scan, *, is_surge: bool, known: Sequence[RuledOut] = ()
) -> _ClassifiedRegions:
    """Classify regions by whether other factors explain them. Regions in `known` remain ruled out in subsets
    of the attempts."""
    idle = [ruled_out_region.factors.items() for ruled_out_region in known]
    candidates: list[Candidate] = []
    refined: list[Candidate] = []
    ruled_out: list[RuledOut] = []
    for region in found.regions[:MAX_EXAMINED]:
        inside = region.inside(table)
        if _is_longer_name(table, region, inside) or region_factors(table, region).items() in idle:
            continue
        ratios = adjustments(table, inside, region.factors)
        because = None if is_surge else explained_away(ratios)
        has_idle_factor = False
        if because is None and not is_surge:
            because, has_idle_factor = _idle_factor(table, region)
        if because is not None:
            ruled_out.append(_ruled_out(table, region, inside, ratios, because))
        else:
            (refined if has_idle_factor else candidates).append((region, ratios))
        if len(candidates) == MAX_CANDIDATES:
            break
    idle = [ruled_out_region.factors.items() for ruled_out_region in (*known, *ruled_out)]
    refined = [candidate for candidate in refined if not _holds_any(table, candidate[0], idle)]
    return _ClassifiedRegions(candidates, refined, ruled_out)


def _holds_any(table: AttemptTable, region: Region, idle: Sequence[ItemsView[str, str]]) -> bool:
    ours = region_factors(table, region).items()
    return any(region_items <= ours for region_items in idle)


def _ruled_out(
    table: AttemptTable,
    region: Region,
    inside: Bool[np.ndarray, "row"],
    ratios: tuple[AdjustedRatio, ...],
    because: Statement,
) -> RuledOut:
    rate, elsewhere = region_rates(table, inside)
    return RuledOut(
        factors=region_factors(table, region), attempts=int(table.attempts[inside].sum()),
        failures=int(table.failures[inside].sum()), rate=rate, elsewhere_rate=elsewhere, adjustments=ratios,
        because=because,
    )  # fmt: skip


def explained_away(ratios: tuple[AdjustedRatio, ...]) -> Statement | None:
    """Return why a region is not a cause, by its successive ratios; None if it may be one.

    A region is explained away if its last ratio may be 1 and its interval lies below the unadjusted ratio. If
    the intervals overlap, nothing is concluded: strata are chosen for what they explain and regions for what
    they do not, so a close miss carries no information.
    """
    if len(ratios) < 2 or ratios[-1].low > 1.0 or ratios[-1].high >= ratios[0].low:
        return None
    plain, last = ratios[0], ratios[-1]
    values = {"ratio": plain.ratio, "adjusted": last.ratio, "within": list(last.within)}
    return Statement(code="explained", values=values)


def _parents(table: AttemptTable, region: Region) -> list[tuple[int, Bool[np.ndarray, "row"]]]:
    """Return for each factor of a region its position, and the region without it."""
    held = [table.factors[index].holds(value) for index, value in zip(region.factors, region.values, strict=True)]
    everything = np.ones(table.num_rows, bool)
    parts = ([everything, *held[:position], *held[position + 1 :]] for position in range(len(held)))
    return [(position, np.logical_and.reduce(part)) for position, part in enumerate(parts)]


def _is_longer_name(table: AttemptTable, region: Region, inside: Bool[np.ndarray, "row"]) -> bool:
    """Return whether a factor could be removed without changing the attempts."""
    return len(region.factors) > 1 and any(parent.sum() == inside.sum() for _, parent in _parents(table, region))


def _idle_factor(table: AttemptTable, region: Region) -> tuple[Statement | None, bool]:
    """Return why one of a region's factors is not a cause given the others, and whether one has no visible
    effect."""
    is_idle = False
    for position, parent in _parents(table, region) if len(region.factors) > 1 else ():
        index = region.factors[position]
        part = table.where(parent)
        ratios = adjustments(part, part.factors[index].holds(region.values[position]), region.factors)
        if (explained := explained_away(ratios)) is not None:
            factor = {table.factors[index].name: table.factors[index].values[region.values[position]]}
            return Statement(code="explained factor", values={**explained.values, "factor": factor}), True
        is_idle |= not ratios or ratios[0].low <= 1.0
    return None, is_idle


def _ties(
    table: AttemptTable, region: Region, classified: _ClassifiedRegions, found: Scan
) -> tuple[list[dict[str, str]], bool]:
    """Return regions that cannot be distinguished (exactly the same attempts, or a similar likelihood and mostly the
    same failures), and whether one has exactly the same attempts."""
    same, similar = list[Region](), list[Region]()
    weighted = found.weights * table.failures
    for other, _ in (*classified.candidates, *classified.refined):
        if other is region:
            continue
        if np.array_equal(other.rows, region.rows):
            same.append(other)
        elif other.llr >= region.llr - SAME_LLR and _overlap(weighted, region.rows, other.rows) >= SAME_FAILURES:
            similar.append(other)
    return [region_factors(table, tied) for tied in (*same, *similar)][:MAX_TIES], bool(same)


def _overlap(weighted: Float64[np.ndarray, "row"], one: Int64[np.ndarray, "a"], other: Int64[np.ndarray, "b"]) -> float:
    """Return the shared failures of two regions, relative to the larger."""
    shared = float(weighted[np.intersect1d(one, other)].sum())
    return shared / max(float(weighted[one].sum()), float(weighted[other].sum()), 1e-12)


def _reason(scanned: Scan, causes: Sequence[FailureCause]) -> Statement:
    confirmed = [cause for cause in causes if cause.is_confirmed]
    if not confirmed:
        rivals = [cause for cause in causes if cause.next.code == "compare"]
        if rivals:
            values = {"factors": rivals[0].factors, "within": rivals[0].next.values["within"]}
            return Statement(code="rival", values=values)
        p_value = scanned.p_value(scanned.regions[0].score)
        return Statement(code="not on record" if p_value <= LEVEL else "chance", values={"p_value": p_value})
    if confirmed[0].is_inseparable:
        return Statement(code="inseparable")
    return Statement(code="regions", values={"regions": len(confirmed)})


def _verdict(because: Statement) -> FailureVerdict:
    if because.code == "regions":
        return "cause" if because.values["regions"] == 1 else "several"
    return "unidentifiable" if because.code in ("not on record", "inseparable", "rival") else "nothing"


def _record(
    table: AttemptTable,
    before: AttemptTable | None,
    because: Statement,
    left_out: dict[str, Statement],
    *,
    scanned: Scan | None = None,
    causes: Sequence[FailureCause] = (),
    ruled_out: Sequence[RuledOut] = (),
) -> FailureDiagnosis:
    size = float(table.size().sum())
    confirmed = [cause.p_value for cause in causes if cause.is_confirmed]
    p_value = None if scanned is None else 1.0
    if scanned is not None and scanned.regions:
        p_value = confirmed[0] if confirmed else scanned.p_value(scanned.regions[0].score)
    return FailureDiagnosis(
        verdict=_verdict(because), because=because, p_value=p_value, attempts=int(table.attempts.sum()),
        failures=int(table.failures.sum()), rate=float(table.failures.sum()) / size if size else 0.0,
        baseline_rate=None if before is None else float(before.failures.sum() / before.size().sum()),
        units=table.num_units(), unit_correlation=0.0 if scanned is None else scanned.correlation,
        causes=tuple(causes), ruled_out=tuple(ruled_out[:MAX_TIES]), left_out={**left_out, **_not_counted(table)},
        sources=dict(table.sources),
    )  # fmt: skip
