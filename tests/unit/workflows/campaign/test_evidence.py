"""The records that a rule asks for, as they lie on disk."""

import json
from pathlib import Path

import pytest

from assay.base.errors import DataError
from assay.decision.config import PlanRule, StandardRule
from assay.planning.program.offer import Offer
from assay.records.drill import DrillReport, Exercise
from assay.workflows.campaign.evidence import file_facts
from golden.write_records import golden_record


def rule(**requests: object) -> StandardRule:
    return StandardRule.model_validate({"primary": ["code"], "least_effect": 0.015, **requests})


def test_nothing_is_read_that_the_rule_does_not_ask_for(tmp_path: Path):
    assert file_facts(rule(drill="audit"), tmp_path) == {}


def test_a_plans_probabilities_are_read_with_where_they_lie(tmp_path: Path):
    (tmp_path / "plan.json").write_text('{"safety": {"p_on_time": 0.87, "p_over_budget": 0.21}}')
    found = file_facts(rule(plan=PlanRule(record="plan.json")), tmp_path)["plan"]
    assert (found.on_time, found.in_budget) == (0.87, pytest.approx(0.79))
    assert found.source.path == str(tmp_path / "plan.json")


def test_a_plans_decision_has_the_days_and_dates_that_its_own_pages_have(tmp_path: Path):
    retained = golden_record(Offer).to_tree()
    retained["safety"]["decision_day"] = {"p10": 35.0, "p50": 40.2, "p90": 56.0}
    retained["safety"]["device_hours"]["p50"] = 15_040.4
    of_program = {"calendar": {"start": "2027-01-04", "weeks": 12}, "decide_by": "end of week 8"}
    (tmp_path / "plan.json").write_text(json.dumps({**retained, **of_program}))
    request = rule(plan=PlanRule(record="plan.json"))
    assert file_facts(request, tmp_path)["plan"].decision == {
        "low": "day 35, 7 Feb", "middle": "day 41, 13 Feb", "high": "day 56, 28 Feb",
        "due": "end of week 8 (day 56, 28 Feb)", "device_hours": 15_040.4,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "words"),
    [('{"safety": {"p_on_time": "soon"}}', "is 'soon'|is None"), ("{}", "no 'safety'"), ("[]", "JSON object")],
)
def test_what_is_no_plans_offer_is_refused(tmp_path: Path, text: str, words: str):
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(DataError, match=words):
        file_facts(rule(plan=PlanRule(record="plan.json")), tmp_path)


def drill() -> DrillReport:
    exercise = Exercise(name="kill", run_id="r", weights_digest="w", num_attempts=2, seconds=1.0, problem="")
    return DrillReport.of({"name": "pilot"}, (exercise,), recipe_sha256="r", workers=2)


def test_a_drills_record_is_read(tmp_path: Path):
    (tmp_path / "drill.json").write_text(drill().to_json() + "\n")
    found = file_facts(rule(drill="drill.json"), tmp_path)["drill"]
    assert found[0] == drill()


@pytest.mark.parametrize("text", ['{"verdict": "pass"}', None, "not JSON"])
def test_what_is_no_drills_record_is_refused(tmp_path: Path, text: str | None):
    if text is not None:
        (tmp_path / "drill.json").write_text(text)
    with pytest.raises(DataError, match=r"drill\.json"):
        file_facts(rule(drill="drill.json"), tmp_path)


def test_a_drills_verdict_that_somebody_edited_is_refused(tmp_path: Path):
    (tmp_path / "drill.json").write_text(drill().to_json().replace('"verdict":"pass"', '"verdict":"fail"'))
    with pytest.raises(DataError, match="its exercises say 'pass'"):
        file_facts(rule(drill="drill.json"), tmp_path)
