"""Hypotheses stand by what came of their predictions: not by votes, and not by what could not be asked."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.base.errors import ConfigError
from assay.records.case import Case, CaseEvidence
from assay.records.symptoms import RecordedSymptom, SharedCause, Symptoms
from assay.triage.case.expectation import CommandOutput, judge, parse_expectation
from assay.triage.case.notebook import Predicted, with_evidence, with_hypothesis, with_vote
from assay.triage.case.propose import proposals, steps_to_replay
from assay.triage.case.questions import command_words, json_command
from assay.triage.case.verdicts import evaluate_case

AUDIT = Predicted("replay a --step 7 --audit-ops", "operators.finding.operator=aten::sum")
DIFFERS = Predicted("replay a --step 7", "verdict=differs")
SCAN = Predicted("triage failures", "causes.*.factors.host=n3")


def case(*hypotheses, failures=()):
    """Each hypothesis: its text, its predictions with what came of them, and who believes it."""
    found = Case(name="c", opened_s=0.0, symptoms=Symptoms(logs=(), failures=failures, signatures=()))
    for text, predicted, voters in hypotheses:
        found = with_hypothesis(found, text, list(predicted), by="me", now_s=1.0)
        for who in voters:
            found = with_vote(found, text, by=who, now_s=2.0)
    outcomes = [outcome for _, predicted, _ in hypotheses for outcome in predicted.values()]
    for index, outcome in enumerate(outcomes):
        if outcome is not None:
            found = with_evidence(found, evidence(index, outcome))
    return found


def evidence(prediction, outcome):
    return CaseEvidence(
        prediction=prediction, outcome=outcome, seen="x", exit_code=0, output_sha256="", code_version="1",
        at_s=3.0, took_s=0.0,
    )  # fmt: skip


def verdicts(found):
    return [(hypothese.text, hypothese.verdict) for hypothese in evaluate_case(found).hypotheses]


def test_what_most_people_believe_ranks_below_what_held():
    found = case(
        ("data", {SCAN: "failed"}, ["ann", "bob", "eve"]),
        ("host", {DIFFERS: "not_run"}, ["dan", "fay"]),
        ("operator", {AUDIT: "held"}, []),
    )
    stand = evaluate_case(found)
    assert verdicts(found) == [("operator", "established"), ("host", "unknown"), ("data", "refuted")]
    assert [hypothese.votes for hypothese in stand.hypotheses] == [(), ("dan", "fay"), ("ann", "bob", "eve")]
    assert (stand.verdict, stand.because) == ("established", "operator: 1 of 1 prediction held.")


@given(st.lists(st.sampled_from(["data", "host", "operator"]), max_size=30))
def test_no_number_of_votes_changes_an_order_or_a_verdict(ballots):
    hypotheses = [("data", {SCAN: "failed"}, []), ("host", {}, []), ("operator", {AUDIT: "held"}, [])]
    before = case(*hypotheses)
    after = before
    for number, text in enumerate(ballots):
        after = with_vote(after, text, by=f"w{number}", now_s=1.0)
    assert verdicts(after) == verdicts(before)


@pytest.mark.parametrize(
    ("outcomes", "verdict"),
    [
        (["held", "held"], "established"),
        (["held", None], "established"),
        (["held", "not_run"], "established"),
        (["held", "failed"], "refuted"),
        (["failed", "failed"], "refuted"),
        (["not_run", None], "unknown"),
    ],
)
def test_a_hypothesis_is_judged_by_what_was_answered(outcomes, verdict):
    assert verdicts(case(("h", dict(zip([AUDIT, SCAN], outcomes, strict=True)), []))) == [("h", verdict)]


def test_more_held_than_failed_is_support_and_no_more():
    assert verdicts(case(("h", {AUDIT: "held", SCAN: "held", DIFFERS: "failed"}, []))) == [("h", "supported")]


def test_of_equal_verdicts_the_one_with_more_behind_it_is_first_whoever_believes_the_other():
    weak, strong = ("weak", {SCAN: "held"}, ["a", "b"]), ("strong", {AUDIT: "held", DIFFERS: "held"}, [])
    assert [text for text, _ in verdicts(case(weak, strong))] == ["strong", "weak"]


def test_what_two_hypotheses_predict_establishes_neither():
    one, other = ("one", {SCAN: "held"}, []), ("other", {SCAN: "held", AUDIT: None}, [])
    assert verdicts(case(one, other)) == [("one", "supported"), ("other", "supported")]
    distinguished = case(one, ("other", {SCAN: "held", AUDIT: "held"}, []))
    assert verdicts(distinguished) == [("other", "established"), ("one", "supported")]


def test_the_latest_evidence_counts_and_what_came_before_stays():
    found = with_evidence(case(("h", {SCAN: "failed"}, [])), evidence(0, "held"))
    assert verdicts(found) == [("h", "established")]
    assert [item.outcome for item in found.evidence] == ["failed", "held"]


def test_a_hypothesis_is_there_once_with_every_prediction_once():
    found = case(("h", {SCAN: None}, []), (" h ", {SCAN: None, AUDIT: None}, []))
    assert len(found.hypotheses) == 1
    assert [prediction.command[0] for prediction in found.predictions] == ["triage", "replay"]


CASE_OUTPUT = {
    "verdict": "equal", "loss": 0.5, "is_on": True, "operators": {"finding": None},
    "audited": {"finding": {"operator": "aten.sum.dim_IntList"}},
    "causes": [{"factors": {"recipe.lr": "1"}}, {"factors": {"recipe.lr": "2"}}], "none": [],
}  # fmt: skip


@pytest.mark.parametrize(
    ("expect", "outcome"),
    [
        ("exit 1", "held"),
        ("exit 0", "failed"),
        ("verdict=equal", "held"),
        ("verdict!=equal", "failed"),
        ("loss=0.50", "held"),
        ("is_on=true", "held"),
        ("operators.finding=null", "held"),
        ("operators.finding.operator=aten::sum", "failed"),
        ("audited.finding.operator=aten::sum", "held"),
        ("audited.finding.operator=aten::su", "failed"),
        ("audited.finding.operator=aten.sum", "failed"),
        ("audited.finding.operator=aten.sum.dim_IntList", "held"),
        ("causes.*.factors.recipe.lr=2", "held"),
        ("causes.0.factors.recipe.lr=2", "failed"),
        ("causes.7.factors.recipe.lr=2", "failed"),
        ("none.*.what!=null", "failed"),
        ("verdikt=equal", "not_run"),
        ("verdict.deeper=equal", "not_run"),
        ("causes.factors=1", "not_run"),
    ],
)
def test_an_answer_is_held_against_what_was_expected(expect, outcome):
    assert judge(parse_expectation(expect), CommandOutput(1, CASE_OUTPUT, "")).outcome == outcome


def test_no_answer_is_neither_for_nor_against():
    found = judge(parse_expectation("exit 1"), CommandOutput(2, None, "exit 2: no run 'a'"))
    assert found == ("not_run", "exit 2: no run 'a'")


@pytest.mark.parametrize("expect", ["", "exit", "exit 2", "exit -1", "verdict", "=x", "a b=c"])
def test_an_expectation_that_cannot_mean_anything_is_refused(expect):
    with pytest.raises(ConfigError, match="--expect"):
        parse_expectation(expect)


@pytest.mark.parametrize(
    "text",
    [
        "rm -rf /", "python -m assay show a", "assay; show a", "", "assay", "runs delete a --yes",
        "train recipe.yaml", "triage case check c", "triage", "data build x", "replay a --step 1 --keep",
        "show --keys", "show 'a", "show a --help", "compare a b", "../assay show", "data  --rows diff",
    ],
)  # fmt: skip
def test_nothing_is_a_prediction_but_a_command_of_assay_that_only_asks(text):
    with pytest.raises(ConfigError, match="--predicts"):
        command_words(text)


def test_a_command_is_words_and_no_shell_sees_them():
    words = command_words("assay show 'a; rm -rf ~' --json $(id) `id` | tee")
    assert words == ("show", "a; rm -rf ~", "$(id)", "`id`", "|", "tee")
    assert json_command(words)[:2] == ["show", "--json"]
    assert json_command(("data", "diff", "--", "a")) == ["data", "diff", "--json", "--", "a"]


def symptom(run_id, step):
    return RecordedSymptom(
        run_id=run_id, step=step, at_s=0.0, seen_by="failure", symptom_class="unknown", key="k", text="t"
    )


def named(operator):
    return {"operators": {"finding": {"operator": operator} if operator else None}}


def test_an_operator_that_one_audit_names_is_predicted_for_every_run():
    found = case(failures=(symptom("a", 3), symptom("a", 9), symptom("b", 4), symptom("c", None)))
    steps = steps_to_replay(found)
    assert [(step.run_id, step.step) for step in steps] == [("a", 3), ("b", 4)]
    operator, rows = proposals(steps, [named(None), named("aten.sum.dim_IntList")], (), {})
    assert operator.text == "operator aten::sum computes wrongly"
    assert [item.command for item in operator.predicted] == [
        "replay a --step 3 --audit-ops --explain",
        "replay b --step 4 --audit-ops --explain",
    ]
    assert {item.expect for item in rows.predicted} == {"explanation.cause=bad data"}


def test_without_a_wrong_operator_none_is_proposed_and_without_a_step_nothing_is_replayed():
    steps = steps_to_replay(case(failures=(symptom("a", 3),)))
    assert [proposal.text for proposal in proposals(steps, [named(None)], (), {})] == [
        "the rows of these steps are to blame"
    ]
    assert [proposal.text for proposal in proposals(steps, [None], (), {})] == ["the rows of these steps are to blame"]
    assert proposals([], [], (), {}) == []


def test_what_symptoms_share_is_asked_of_the_scan_and_a_dataset_of_the_one_before():
    host = SharedCause(signatures=("a", "b"), factors={"host": "n3"}, p_value=0.01)
    data = SharedCause(signatures=("a", "b"), factors={"dataset": "new"}, p_value=0.01)
    moment = SharedCause(signatures=("a", "b"), factors={}, onset_s=1.0, p_value=0.01)
    found = proposals([], [], (host, data, moment), {"late": "new", "early": "old"})
    assert [item.text for item in found] == ["host n3 at fault", "dataset new at fault"]
    assert found[0].predicted == (Predicted("triage failures", "causes.*.factors.host=n3"),)
    assert found[1].predicted[1] == Predicted("triage data early late", "results.*.what!=null")


@pytest.mark.parametrize("name", ["0", "3", "the dat", "", "-1"])
def test_a_hypothesis_that_is_not_there_gets_no_vote(name):
    with pytest.raises(ConfigError, match="case 'c' has no hypothesis"):
        with_vote(case(("the data", {}, []), ("b", {}, [])), name, by="me", now_s=0.0)
