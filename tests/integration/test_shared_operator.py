"""One wrong operator, three symptoms in three runs of real processes: replays name the operator.

The runs were hurt by a wrong corner of `torch.sum` (see `plants/wrong_sum`): one died of a NaN, one of an index
that is out of range, and one is only a little off. All read the same rows in the same order, so somebody doubts
the third one at the step at which the first one died.
"""

import json

import pytest


@pytest.mark.soak
@pytest.mark.timeout(2000)
def test_replays_name_the_operator_behind_three_symptoms_and_without_the_fault_none(shared_planted_assay) -> None:
    assay = shared_planted_assay
    for kind, run_id, fails in (("nan", "dies", True), ("index", "falls", True), ("off", "off", False)):
        assay.plant("wrong_sum", WRONG_SUM=kind)
        assay.run(*assay.train_command(run_id, 2, max_steps=10), fails=fails)
    found = json.loads(assay.run("triage", "symptoms", "--json").stdout)
    assert {(item["run_id"], item["class"]) for item in found["failures"]} == {
        ("dies", "not_finite"),
        ("falls", "program"),
    }
    assert found["shared"] == []
    step = next(item["step"] for item in found["failures"] if item["run_id"] == "dies")
    words = ("triage", "symptoms", "dies", "falls", f"off@{step}", "--replay", "--json")
    (shared,) = json.loads(assay.run(*words, timeout_s=900.0).stdout)["shared"]
    assert (shared["factors"], shared["runs"]) == ({"operator": "aten::sum"}, ["dies", "falls", "off"])
    assert (len(shared["signatures"]), shared["p_value"]) == (3, None)
    assay.remove_faults()
    assert not [
        item
        for item in json.loads(assay.run(*words, timeout_s=900.0).stdout)["shared"]
        if "operator" in item["factors"]
    ]
