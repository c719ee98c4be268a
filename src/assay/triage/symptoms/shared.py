"""Finds signatures with a shared cause: a common region of factors, or a common onset.

    recorded attempts, failed if they have a signature   -> scan of `triage failures` -> regions
                                       since each moment -> the same scan             -> an onset
    -> the failures of all signatures but the strongest are also too frequent there

A region that only one signature supports is no shared cause, hence the last step: either all other signatures
together, for many rare ones, or one by one (Benjamini & Heller's partial conjunction, 2008), for few frequent ones.
Signatures are listed if their p-value there is at most 0.2.

Replays of the failed steps are stronger evidence: symptoms of any kind share a cause if the operator audit of each
run's step names the same operator, whatever most people would guess.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from scipy.stats import binom, false_discovery_control

from assay.base.errors import ConfigError
from assay.base.shapes import Bool, Float64, Int64
from assay.records.replay import ReplayReport
from assay.records.statement import Statement
from assay.records.symptoms import RecordedSymptom, SharedCause
from assay.store.ledger.ledger import Ledger
from assay.triage.attempts.columns import text_column
from assay.triage.attempts.ledger import ledger_columns
from assay.triage.attempts.table import AttemptTable, ColumnNames, Factor, having, table_of
from assay.triage.failures.diagnose import LEVEL, diagnose
from assay.triage.failures.scan import scan
from assay.triage.symptoms.recorded import symptom_of

SIGNATURE = "signature"
NUM_MOMENTS = 40
"""Number of tested onsets, spread over the attempts."""
TWICE = 2
"""Bonferroni factor: regions and onsets are tested."""
MAX_REPLAYS = 12
NAMED = 0.2
"""Signatures with at most this p-value are listed as sharing the cause."""


Shared = tuple[tuple[SharedCause, ...], Statement]
"""Shared causes of signatures, and why these or none."""


class _Region(NamedTuple):
    """Attempts that fail too often."""

    factors: dict[str, str]
    onset_s: float | None
    p_value: float
    inside: Bool[np.ndarray, "row"]


def shared_causes(ledger: Ledger, failures: Sequence[RecordedSymptom], rng: np.random.Generator) -> Shared:
    """Find shared causes of these failures' signatures, among all recorded attempts."""
    keys = {failure.key for failure in failures if failure.key}
    if len(keys) < 2:
        return (), Statement(code="few signatures", values={"signatures": len(keys)})
    try:
        columns, attempts = ledger_columns(ledger, with_costs=True)
    except ConfigError:
        return (), Statement(code="no attempt")
    known = [symptom_of(attempt) for attempt in attempts]
    cells = [symptom.key if symptom is not None and symptom.key in keys else None for symptom in known]
    columns = replace(
        columns,
        table=columns.table.append_column(SIGNATURE, pa.chunked_array([text_column(cells)])),
        factors=(*columns.factors, SIGNATURE),
    )
    return shared_in(table_of(columns, ColumnNames()), rng)


def shared_in(table: AttemptTable, rng: np.random.Generator) -> Shared:
    """Find shared causes in a table whose last factor is the signature (none for other attempts)."""
    *factors, signature = table.factors
    failed = np.zeros(table.num_rows)
    failed[signature.rows] = 1.0
    unsigned = replace(table, factors=tuple(factors), failures=failed)
    diagnosis = diagnose(unsigned, window=None, baseline=None, rng=rng)
    regions = [
        _Region(cause.factors, None, cause.p_value, having(unsigned, list(cause.factors.items())))
        for cause in diagnosis.causes
        if cause.is_confirmed
    ]
    regions += _onset(unsigned, rng)
    found = list(_explained(unsigned, signature, regions))
    merged = _with_onsets(found)
    values = {"attempts": table.num_rows, "failures": int(failed.sum())}
    if merged:
        return tuple(sorted(merged, key=lambda cause: cause.p_value or 0.0)), Statement(code="shared", values=values)
    if regions:
        return (), Statement(code="one signature stands out", values=values)
    return (), Statement(code="none shared", values={**values, "because": diagnosis.because.model_dump()})


def _onset(table: AttemptTable, rng: np.random.Generator) -> list[_Region]:
    """Return the moment since which these failures are more frequent; empty if none is significant."""
    if table.at_s is None or not 0 < table.failures.sum() < table.num_rows:
        return []
    indices = np.linspace(0, table.num_rows - 1, NUM_MOMENTS + 2)[1:-1].astype(int)
    moments = np.unique(np.sort(table.at_s)[indices])
    moments = moments[moments > table.at_s.min()]
    if not len(moments):
        return []
    found = scan(replace(table, factors=(_since(table.at_s, moments),)), None, rng=rng)
    if not found.regions or (p_value := found.p_value(found.regions[0].score)) > LEVEL:
        return []
    onset_s = float(moments[found.regions[0].values[0]])
    return [_Region({}, onset_s, p_value, table.at_s >= onset_s)]


def _since(at_s: Float64[np.ndarray, "row"], moments: Float64[np.ndarray, "moment"]) -> Factor:
    """Return a factor with every tested moment before each attempt as its values."""
    passed = np.searchsorted(moments, at_s, side="right")
    rows = np.repeat(np.arange(len(at_s)), passed)
    codes = np.concatenate([np.arange(count) for count in passed]) if len(at_s) else rows
    return Factor(
        name="since", values=tuple(map(repr, moments.tolist())), rows=rows, codes=codes.astype(np.int64),
        cells=passed.astype(np.int64),
    )  # fmt: skip


def _explained(table: AttemptTable, signature: Factor, regions: Sequence[_Region]) -> Iterator[SharedCause]:
    for region in regions:
        p_values = {
            key: _p_value(table, signature.rows[signature.codes == code], region.inside)
            for code, key in enumerate(signature.values)
        }
        strongest = min(p_values, key=lambda key: p_values[key])
        others = signature.rows[signature.codes != signature.values.index(strongest)]
        one_by_one = false_discovery_control(sorted(p_values.values())[1:])  # the least is Simes' (1986) p-value
        by_others = min([_p_value(table, others, region.inside), *one_by_one])
        p_value = TWICE * max(region.p_value, by_others)
        named = tuple(key for key in p_values if p_values[key] <= NAMED or key == strongest)
        if len(named) > 1 and p_value <= LEVEL:
            yield SharedCause(signatures=named, factors=region.factors, onset_s=region.onset_s, p_value=p_value)


def _p_value(table: AttemptTable, failed: Int64[np.ndarray, "failed"], inside: Bool[np.ndarray, "row"]) -> float:
    """Return the p-value of the number of failures in a region, by the first failed attempt of each unit and
    the mean share of a unit's attempts there."""
    if not len(failed):
        return 1.0
    _, index = np.unique(table.units, return_inverse=True)
    share = float((np.bincount(index, inside) / np.bincount(index)).mean())
    _, first = np.unique(table.units[failed], return_index=True)
    return float(binom.sf(int(inside[failed[first]].sum()) - 1, len(first), share))


def _with_onsets(found: Sequence[SharedCause]) -> list[SharedCause]:
    """Merge a region and an onset with the same signatures."""
    onset = next((cause for cause in found if cause.onset_s is not None), None)
    regions = [cause for cause in found if cause is not onset]
    if onset is None:
        return regions
    same = [region for region in regions if set(region.signatures) == set(onset.signatures)]
    if not same:
        return [*regions, onset]
    return [region.model_copy(update={"onset_s": onset.onset_s}) if region in same else region for region in regions]


def steps_to_replay(failures: Sequence[RecordedSymptom]) -> dict[str, RecordedSymptom]:
    """Return run -> its first symptom with a step, for at most `MAX_REPLAYS` runs."""
    first: dict[str, RecordedSymptom] = {}
    for failure in failures:
        if failure.step:
            first.setdefault(failure.run_id, failure)
    return dict(list(first.items())[:MAX_REPLAYS])


def causes_of_replays(
    symptoms: Mapping[str, RecordedSymptom], reports: Mapping[str, ReplayReport]
) -> tuple[SharedCause, ...]:
    """Return what the audited replays of several runs name in common: an operator, or else bad rows. Both
    arguments are by run."""
    runs = defaultdict[tuple[str, str], list[str]](list)
    for run_id, report in reports.items():
        finding = report.operators.finding if report.operators is not None else None
        if finding is not None:
            namespace, name, *_ = finding.operator.split(".")  # overloads of one operator share its code
            runs["operator", f"{namespace}::{name}"].append(run_id)
        elif report.explanation is not None and report.explanation.cause == "bad data":
            runs["explanation", "bad data"].append(run_id)
    shared = sorted((item for item in runs.items() if len(item[1]) > 1), key=lambda item: -len(item[1]))
    return tuple(
        SharedCause(
            signatures=tuple(dict.fromkeys(symptoms[run_id].key for run_id in named if symptoms[run_id].key)),
            factors={kind: value}, runs=tuple(named), p_value=None,
        )
        for (kind, value), named in shared
    )  # fmt: skip
