"""One wrong operator, three symptoms in three runs of real processes, one case: the operator is named.

The runs were hurt by a wrong corner of `torch.sum` (see `plants/wrong_sum`): one died of a NaN, one of an index
that is out of range, and one is only a little off. All read the same rows in the same order, so somebody doubts
the third one at the step at which the first one died.
"""

import json

import pytest

OPERATOR = "operator aten::sum computes wrongly"


@pytest.fixture(scope="module")
def three(shared_planted_assay):
    """Has the runs, and the step at which the first one died."""
    assay = shared_planted_assay
    for symptom, run_id, fails in (("nan", "dies", True), ("index", "falls", True), ("off", "off", False)):
        assay.plant("wrong_sum", WRONG_SUM=symptom)
        assay.run(*assay.train_command(run_id, 2, max_steps=10), fails=fails)
    found = json.loads(assay.run("triage", "symptoms", "--json").stdout)
    assert {(item["run_id"], item["class"]) for item in found["failures"]} == {
        ("dies", "not_finite"),
        ("falls", "program"),
    }
    return assay, next(item["step"] for item in found["failures"] if item["run_id"] == "dies")


def begin(three, name):
    """A case of the runs, in which three people believe in the data and two in the host."""
    assay, step = three
    case = ("triage", "case")
    assay.run(*case, "open", name, "dies", "falls", f"off@{step}")
    looked = f"replay dies --step {step} --explain --audit-ops"
    for text, command, expect, voters in (
        ("the data is bad", looked, "explanation.cause=bad data", ("ann", "cat", "dan")),
        ("the host is broken", "triage failures", "verdict=cause", ("bob", "eve")),
    ):
        output = ("--hypothesis", text, "--predicts", command, "--expect", expect)
        assay.run(*case, "add", name, *output, "--vote", voters[0])
        for who in voters[1:]:
            assay.run(*case, "vote", name, text, who)
    return assay


def checked(assay, name, *options):
    return json.loads(assay.run("triage", "case", "check", name, *options, "--json").stdout)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_one_case_names_the_operator_that_nobody_voted_for_and_mending_it_refutes_it(three) -> None:
    assay = begin(three, "sums")
    found = checked(assay, "sums")
    first, *others = found["hypotheses"]
    assert (found["verdict"], first["text"], first["verdict"]) == ("established", OPERATOR, "established")
    assert (first["held"], first["failed"], first["votes"]) == (3, 0, [])
    assert {item["seen"] for item in first["predictions"]} == {"aten.sum.dim_IntList"}
    assert {item["text"]: (item["verdict"], len(item["votes"])) for item in others} == {
        "the data is bad": ("refuted", 3),
        "the host is broken": ("refuted", 2),
        "the rows of these steps are to blame": ("refuted", 0),
    }
    assert len(found["symptoms"]["signatures"]) == 3
    assay.remove_faults()
    again = {item["text"]: item["verdict"] for item in checked(assay, "sums")["hypotheses"]}
    assay.plant("wrong_sum", WRONG_SUM="off")
    assert again[OPERATOR] == "refuted"


@pytest.mark.slow
def test_where_nobody_proposes_an_audit_no_operator_is_named(three) -> None:
    assay = begin(three, "unaudited")
    found = checked(assay, "unaudited", "--no-proposals")
    assert OPERATOR not in [item["text"] for item in found["hypotheses"]]
    assert found["verdict"] == "refuted"
