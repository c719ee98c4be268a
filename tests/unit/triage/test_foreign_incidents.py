"""What `assay triage` reaches on incidents by an author who read none of its rules."""

import importlib
from pathlib import Path

import pytest

AT_LEAST = {
    "logs": {"all: first": 0.865, "all: among_three": 0.969, "all: class_right": 0.898},
    "second_logs": {"all: first": 0.807, "all: among_three": 0.977, "all: class_right": 0.932},
    "hang": {"ranks_named": 0.98, "incidents_right": 0.98, "torch 2.3: ranks_named": 0.888},
    "slow": {"found_0.005": 1.0, "found_large": 1.0, "assigned": 0.963},
    "skew": {"right": 0.965},
    "failures": {"culprit_confirmed": 0.764, "culprit_first": 0.867},
}
"""Figures of both halves. Of `logs`, the class is right in all of the half that was shown, and in 80% of the others."""
AT_MOST: dict[str, dict[str, float]] = {
    "logs": {},
    "second_logs": {},
    "hang": {"wrongly_named": 0, "torch 2.3: wrongly_named": 0},
    "slow": {"false_per_100_runs": 0, "wrong_blame": 1},
    "skew": {"innocent_blamed": 0},
    "failures": {"innocent_named": 0.017},
}


@pytest.mark.slow
@pytest.mark.timeout(900)  # `slow` takes three minutes on two cores that others use too
@pytest.mark.parametrize("question", AT_LEAST)
def test_incidents_that_no_rule_was_tried_on_are_read_as_before(question: str, tmp_path: Path) -> None:
    incidents = importlib.import_module(f"foreign_incidents.{question}")
    graded = [(incident, incidents.grade(incident, tmp_path)) for incident in incidents.incidents()]
    figures = incidents.summary(graded)
    worse = {name: figures[name] for name, least in AT_LEAST[question].items() if figures[name] < least}
    worse |= {name: figures[name] for name, most in AT_MOST[question].items() if figures[name] > most}
    assert not worse, figures


@pytest.mark.slow
@pytest.mark.parametrize("question", AT_LEAST)
def test_a_seed_makes_the_same_incidents(question: str) -> None:
    incidents = importlib.import_module(f"foreign_incidents.{question}")
    assert [str(incident) for incident in incidents.incidents()] == [
        str(incident) for incident in incidents.incidents()
    ]
