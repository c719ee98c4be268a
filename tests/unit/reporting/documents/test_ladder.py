"""What the gates of a ladder saw, in words."""

from typing import Any

import pytest

from assay.records.decision import Clause, GateVerdict
from assay.records.ladder import NO_VERDICT
from assay.reporting.documents.ladder import clause_text

SAVED = {"value": -1.5, "low": -2.0, "high": -1.0, "confidence": 0.95}
BAND = {"value": 2.0, "low": 1.9, "high": 2.1, "confidence": 0.99}
TIMES = {"forecast_s": 0.5, "before_s": 0.4, "machine": 1.0}
SUM = {"together": {"value": 0.5}, "sum": {"value": 0.8}, "interaction": {**SAVED, "value": -0.3}}


@pytest.mark.parametrize(
    ("gate", "verdict", "keys", "text"),
    [
        ("gain", "pass", {"values": {"effect": SAVED, "by": "worth"}, "unit": "nats"}, "-1.5000 nats [95%: "),
        (
            "loss_band",
            "fail",
            {"reason": "above", "values": {"band": BAND, "target": {"tokens": 8e6}, "is_untested": 1}},
            "loss of 2.2000 is above the 99% band of the smaller runs' law, 1.9000 to 2.1000 at tokens 8e+06; so",
        ),
        (
            "step_time",
            "pass",
            {"values": TIMES},
            "A step of 2.2 s is within the forecast of 0.5 s, at most 3 s; before it",
        ),
        ("step_time", "fail", {"values": TIMES}, "is slower than the forecast of 0.5 s"),
        (
            "code_length",
            "fail",
            {"values": {"saved": SAVED}, "unit": "bits per row"},
            "saves -1.5000 bits per row [95%",
        ),
        ("code_length", "undecided", {"values": {"saved": SAVED}}, ": undecided."),
        (
            "code_length",
            "undecided",
            {"reason": NO_VERDICT, "values": {"problem": "other rows"}},
            "Not judged: other rows",
        ),
        ("warnings", "pass", {"values": {"new": {}}}, "No new warning"),
        (
            "warnings",
            "fail",
            {"values": {"new": {"spikes": ["a"], "diverged": ["a", "b"]}}},
            "spikes (1 run) and diverged (2",
        ),
        (
            "interaction",
            "fail",
            {"reason": "less than the sum", "values": {**SUM, "changes": ["a", "b", "c"]}, "unit": "nats"},
            "c interacts with a and b: together +0.5000 nats, less than the sum of +0.8000 nats, a difference",
        ),
        (
            "interaction",
            "pass",
            {"reason": "additive", "values": {**SUM, "changes": []}},
            "The gains add up: together +0.5",
        ),
    ],
)
def test_a_gate_says_what_it_saw(gate: str, verdict: GateVerdict, keys: dict[str, Any], text: str) -> None:
    clause = Clause(name=gate, type=gate, verdict=verdict, value=2.2, bound=3.0, **{"reason": verdict, **keys})
    assert text in clause_text(clause)
