"""Our rules against the verdicts of OpenAI Evals 3.0.1 itself, on hundreds of awkward cases.

Each line of `registry_semantics.jsonl` is a case and what the reference's own class said about it (its code
was run; only the result is kept): answers and ideals in many spellings, empty ones, JSON null, doubled keys,
invalid JSON, judges that ramble.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from assay.scoring.registry.matching import fuzzy_match, includes, json_match, match, token_f1
from assay.scoring.registry.model_graded import ModelGradedSpec, choices_of, escaped, judge_prompt, judgement

CASES = [json.loads(line) for line in (Path(__file__).parent / "registry_semantics.jsonl").read_text().splitlines()]


def cases_of(rule: str) -> list[dict[str, Any]]:
    found = [case for case in CASES if case["rule"] == rule]
    assert len(found) >= 100
    return found


def ideals(case: dict[str, Any]) -> list[str]:
    return case["ideal"] if isinstance(case["ideal"], list) else [case["ideal"]]


def test_match_agrees_with_the_reference():
    for case in cases_of("Match"):
        assert match(case["answer"], ideals(case)) == case["match"], case


def test_includes_agrees_with_the_reference():
    for case in cases_of("Includes"):
        found = includes(case["answer"], ideals(case), ignore_case=case["ignore_case"])
        assert found == case["match"], case


def test_fuzzy_match_and_its_f1_agree_with_the_reference():
    for case in cases_of("FuzzyMatch"):
        assert fuzzy_match(case["answer"], ideals(case)) == case["match"], case
        assert token_f1(case["answer"], ideals(case)) == case["f1"], case


def test_json_match_agrees_with_the_reference():
    for case in cases_of("JsonMatch"):
        if "error" in case:
            with pytest.raises(ValueError, match="Expecting"):
                json_match(case["answer"], ideals(case))
        else:
            assert json_match(case["answer"], ideals(case)) == case["match"], case


def test_model_based_classify_agrees_with_the_reference():
    for case in cases_of("ModelBasedClassify"):
        spec = ModelGradedSpec.model_validate(case["spec"])
        choices = choices_of(spec, case["n"])
        values = {"completion": case["completion"], "input": escaped(case["input"]), "n2": "7"}
        assert judge_prompt(spec, choices, values, case["eval_type"]) == case["prompt"], case
        found = judgement(
            case["answer"],
            spec,
            choices,
            eval_type=case["eval_type"],
            match_rule=case["match_fn"] or "starts_or_endswith",
        )
        assert found == (case["choice"], case["score"]), case
