"""How often `triage slow` and `triage skew` are right on made-up incidents of many kinds."""

from collections import Counter

import numpy as np
import pytest

from assay.records.skew import Skew
from assay.records.slow_changes import SlowChange
from assay.triage.skew import split_skew
from assay.triage.slow.explain import explain_changes
from skew_incidents import SkewIncident, skew_incident
from slow_incidents import SlowIncident, TrueChange, slow_incident
from variants import slow

NEAR = 3
"""Runs by which a found change may miss the planted one."""
SMALL = 0.0075


@pytest.mark.parametrize("number", [15, *slow(200)])
def test_changes_are_found_and_nobody_is_blamed_wrongly(number: int) -> None:
    found = sum((slow_counts(slow_incident(seed)) for seed in range(number)), Counter[str]())
    share, small = (0.95, 0.8) if number >= 200 else (0.9, 0.7)
    assert found["large found"] >= share * found["large"] and found["small found"] >= small * found["small"], found
    assert found["false"] <= 0.01 * found["runs"] and found["incidents with a false one"] <= 0.02 * number, found
    assert found["blamed wrongly"] == 0, found
    assert found["named"] >= 0.9 * found["to be named"] and found["phase right"] >= share * found["found"], found


def slow_counts(incident: SlowIncident) -> Counter[str]:
    left = list(explain_changes(incident.series, least=0.005).changes)
    counts = Counter(runs=len(incident.series.values))
    for planted in incident.changes:
        size = "small" if planted.magnitude < SMALL else "large"
        counts[size] += 1
        near = [
            change for change in left if is_near(change, planted, NEAR) and (change.ratio > 1) == (planted.effect > 0)
        ]
        if not near:
            continue
        best = min(near, key=lambda change: abs(change.index - planted.first))
        left = [change for change in left if change is not best and not is_near(change, planted, -1)]
        named = {name for names in best.assigned for name in names.split("+")}
        counts.update([f"{size} found", "found", *["phase right"] * (best.phase == planted.phase)])
        counts["to be named"] += planted.is_identifiable and bool(planted.causes)
        counts["named"] += planted.is_identifiable and bool(named)
        counts["blamed wrongly"] += bool(named - planted.causes) or (bool(named) and not planted.is_identifiable)
    counts["false"] += len(left)
    counts["incidents with a false one"] += bool(left)
    return counts


def is_near(change: SlowChange, planted: TrueChange, runs: int) -> bool:
    """Whether a change is where runs of both kinds are mixed, or that many runs beside it."""
    return abs(change.index - planted.first) <= runs + (planted.mixed or 0)


@pytest.mark.parametrize("number", [10, *slow(200)])
def test_skew_is_named_by_its_kind_and_by_its_place(number: int) -> None:
    right = 0
    for seed in range(number):
        incident = skew_incident(seed)
        found = split_skew(incident.durations)
        kinds = (["location"] if incident.locations else []) + (["work"] if incident.is_uneven else [])
        expected = "both" if len(kinds) == 2 else (kinds or ["even"])[0]
        right += found.verdict == expected and named_locations(incident, found) == planted_locations(incident)
    assert right >= 0.95 * number


def named_locations(incident: SkewIncident, found: Skew) -> set[bytes]:
    """The rows of each named location, of one kind."""
    locations = set()
    for effect in found.effects:
        if effect.side == "location":
            mask = np.array(incident.durations.kinds) == effect.operation
            for name, value in effect.factors.items():
                mask &= np.array(incident.durations.location[name]) == value
            locations.add(mask.tobytes())
    return locations


def planted_locations(incident: SkewIncident) -> set[bytes]:
    kinds = np.array(incident.durations.kinds)
    of_kinds = [location & (kinds == kind) for location in incident.locations for kind in np.unique(kinds)]
    return {rows.tobytes() for rows in of_kinds if rows.any()}
