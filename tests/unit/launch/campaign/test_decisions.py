"""A decision on record beside what its results say today."""

import json
from pathlib import Path
from typing import Any

import pytest

from assay.launch.campaign.decisions import difference_of, with_possible_bounds
from assay.records.decision import Decision

RECORD = Path(__file__).parents[3] / "golden" / "records" / "decision" / "v1.json"


def decided(*, low: float | None, high: float | None, bound: float) -> Decision:
    """With an interval of the effect, and one clause's bound."""
    tree: dict[str, Any] = json.loads(RECORD.read_text())
    tree["effect"] |= {"value": 0.0, "low": low, "high": high}
    gate = tree["gates"][0]
    gate["clauses"][0] |= {"type": "effect", "value": bound}
    gates = [gate, {**gate, "gate": "stop"}]
    return Decision.from_json(json.dumps({**tree, "gates": gates}), source=RECORD)


@pytest.mark.parametrize(("bound", "follows"), [(-1.88, True), (1.88, False), (-0.99, False)])
def test_bounds_that_an_older_assay_wrote_beyond_a_share_follow_cut_to_what_is_possible(
    bound: float, follows: bool
) -> None:
    today = decided(low=-1.0, high=1.0, bound=-1.0)
    before = with_possible_bounds(decided(low=-1.67, high=1.67, bound=bound), today)
    assert (difference_of(before, today) is None) == follows


def test_a_sure_nothing_of_scores_that_never_differ_follows_and_no_other_interval_does() -> None:
    today = decided(low=None, high=None, bound=0.0)
    for high, follows in ((0.0, True), (0.1, False)):
        before = with_possible_bounds(decided(low=0.0, high=high, bound=0.0), today)
        assert (difference_of(before, today) is None) == follows
