"""Graders in the API's schemas."""

from contextlib import closing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.base.config import FrozenConfig, LoadedConfig, validated
from assay.base.errors import ConfigError
from assay.inference.protocol import Completion, SamplerError
from assay.scoring.grader_runner import GraderRunner, Tools, sample_values
from assay.scoring.graders import Grader, grader_sha256
from assay.scoring.template import SAMPLE_FIELDS

OPERATIONS = ("eq", "ne", "like", "ilike")
TEXT = {"input": "{{ sample.output_text }}", "reference": "{{ item.answer }}"}


class Holder(FrozenConfig):
    grader: Grader


def grader_of(tree):
    return validated(Holder, LoadedConfig({"grader": dict(tree)}, {})).grader


def grade(tree, output="Paris", tools=Tools(), **item):  # noqa: B008
    with closing(GraderRunner(grader_of(tree), tools)) as runner:
        return runner.grade([sample_values(output, {"answer": "paris", **item})])[0]


@pytest.mark.parametrize(
    ("operation", "output", "score"), [("eq", "paris", 1), ("eq", "Paris", 0), ("ne", "Paris", 1), ("like",
    "in paris!", 1), ("like", "in Paris!", 0),
     ("ilike", "in PARIS!", 1), ("like", "par", 0)],
)  # fmt: skip
def test_string_check(operation, output, score):
    assert grade({"type": "string_check", "name": "n", "operation": operation, **TEXT}, output).score == score


def test_templates_reach_into_json_and_lists():
    tree = {
        "type": "string_check", "operation": "eq",
        "input": "{{ sample.output_json.city }}{{sample.choices[0].message.content}}",
        "reference": '{{ item.answers[1] }}{{ item["raw text"] }}',
    }  # fmt: skip
    output = '{"city": "Paris"}'
    assert grade(tree, output, answers=["x", "Paris"], **{"raw text": output}).score == 1.0


def test_a_sample_has_what_graders_are_checked_against():
    assert sorted(sample_values("a", {})["sample"]) == sorted(SAMPLE_FIELDS)


def test_a_variable_that_a_sample_lacks_is_a_failure_not_a_zero():
    graded = grade({"type": "string_check", "operation": "eq", "input": "{{ item.missing }}", "reference": "x"})
    assert graded.score is None
    assert graded.failure == ("invalid_variable_error", "{{ item.missing }}: no 'missing'")


def test_cosine_asks_the_embedder(scripted):
    tree = {"type": "text_similarity", "evaluation_metric": "cosine", **TEXT}
    assert grade(tree, "ab", Tools(embedder=scripted("")), answer="aabb").score == pytest.approx(1.0)
    with pytest.raises(ConfigError, match="cosine similarity needs an endpoint"):
        grade(tree)


SCORE_MODEL = {
    "type": "score_model", "name": "judge", "model": "judge-1", "range": [0, 10],
    "input": [{"role": "user", "content": "Rate {{ sample.output_text }}"},
              {"role": "user", "content": [{"type": "input_text", "text": "for {{ item.answer }}"}]}],
}  # fmt: skip


@pytest.mark.parametrize(
    ("reply", "score"),
    [('{"result": 7}', 7.0), ('```json\n{"steps": [], "result": 0.5}\n```', 0.5), ("9", 9.0), ("nine", None),
     ('{"result": 11}', None), ('{"result": true}', None), ('{"score": 3}', None)],
)  # fmt: skip
def test_a_score_model_gives_a_number_in_its_range_or_none(scripted, reply, score):
    judge = scripted(reply)
    graded = grade(SCORE_MODEL, tools=Tools({"judge-1": judge}))
    assert graded.score == score
    assert (graded.failure is None) == (score is not None)
    assert [turn["content"] for turn in judge.requests[0]][:2] == ["Rate Paris", "for paris"]


def test_a_judge_that_is_away_is_a_failure_of_the_server(scripted):
    away = scripted(lambda prompt: SamplerError("timeout", "no answer in 60 s"))
    graded = grade(SCORE_MODEL, tools=Tools({"*": away}))
    assert graded.failure == ("model_grader_server_error", "no answer in 60 s")


def test_a_judge_whose_answer_was_cut_gave_no_mark():
    class Verbose:
        name = "verbose"

        def generate(self, prompts, params):
            return [Completion('An example: {"result": 3}. Now, step by', "length", 5, 9)] * len(prompts)

    graded = grade(SCORE_MODEL, tools=Tools({"judge-1": Verbose()}))
    assert graded.score is None
    assert graded.failure.kind == "model_grader_parse_error"
    assert "cut after 9 tokens" in graded.failure.text


def test_a_judge_that_nobody_answers_for_is_found_before_anything_runs():
    with pytest.raises(ConfigError, match="no endpoint is configured for judge 'judge-1'"):
        grade(SCORE_MODEL)


def test_a_label_model_passes_on_its_passing_labels(scripted):
    tree = {
        "type": "label_model", "model": "m",
        "labels": ["good", "fair", "bad"], "passing_labels": ["good", "fair"],
        "input": [{"role": "user", "content": "{{ sample.output_text }}"}],
    }  # fmt: skip
    for reply, score, label in (
        ('{"label": "fair"}', 1.0, "fair"),
        ("bad.", 0.0, "bad"),
        ("so-so", None, None),
    ):
        graded = grade(tree, tools=Tools({"m": scripted(reply)}))
        assert (graded.score, graded.label) == (score, label)


def multi(graders):
    return {"type": "multi", "graders": graders, "calculate_output": "0.75 * exact + 0.25 * near"}


EXACT = {"type": "string_check", "operation": "eq", **TEXT}
NEAR = {"type": "text_similarity", "evaluation_metric": "fuzzy_match", **TEXT}


@pytest.mark.parametrize(
    "graders", [{"exact": EXACT, "near": NEAR}, [{**EXACT, "name": "exact"}, {**NEAR, "name": "near"}]]
)
def test_a_multi_grader_combines_the_scores_of_a_mapping_or_a_list(graders):
    graded = grade(multi(graders), "paris")
    assert graded.score == pytest.approx(1.0)
    assert graded.parts == {"exact": 1.0, "near": 1.0}


def test_a_multi_grader_fails_with_the_grader_that_failed(scripted):
    broken = {"type": "python", "source": "def grade(sample, item): return 1 / 0"}
    graded = grade(multi({"exact": EXACT, "near": broken}))
    assert graded.score is None
    assert graded.failure.kind == "python_grader_runtime_error"
    assert graded.failure.text.startswith("ZeroDivisionError")
    assert graded.failure.text.endswith("(grader 'near')")


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"type": "string_check", "operation": "equals", **TEXT}, "operation"),
        ({**EXACT, "refrence": "x"}, "Perhaps you meant 'grader.reference'"),
        ({**EXACT, "input": "{{ output }}"}, r"is not a known variable\. Write item\.FIELD"),
        (multi({"exact": EXACT}), r"uses \['near'\], not among the graders"),
        ({**SCORE_MODEL, "range": [1, 0]}, "the first must be less"),
        ({"type": "python", "source": "x"}, "defines no function"),
        ({"type": "llm"}, "type|tag"),
    ],
)
def test_a_grader_that_can_mean_nothing_is_refused_by_name(tree, message):
    with pytest.raises(ConfigError, match=message):
        grader_of(tree)


def test_a_graders_digest_follows_its_rule_and_not_its_name():
    assert grader_sha256(grader_of({**EXACT, "name": "a"})) == grader_sha256(grader_of({**EXACT, "name": "b"}))
    assert grader_sha256(grader_of(EXACT)) != grader_sha256(grader_of({**EXACT, "operation": "ne"}))


@pytest.mark.parametrize("output", ["paris", " paris", "paris\n", "\t paris \u3000\n"])
def test_white_space_around_an_answer_is_no_part_of_it(output):
    source = "def grade(sample, item): return sample['output_text'] == item['answer']"
    assert grade(EXACT, output).score == 1.0
    assert grade({"type": "python", "source": source}, output).score == 1.0
    raw = {**EXACT, "input": "{{ sample.choices[0].message.content }}|", "reference": f"{output}|"}
    assert grade(raw, output).score == 1.0


@pytest.mark.parametrize(
    ("operation", "output", "reference", "score"),
    [
        ("eq", "cafe\u0301", "caf\u00e9", 1),  # one character, written in two ways
        ("ilike", "Die STRASSE", "straße", 1),
        ("ilike", "ΟΔΟΣ", "Σ", 1),
        ("like", "anything", "", 0),
        ("ilike", "anything", "", 0),
        ("like", " ", "", 1),
        ("eq", "", "0", 0),
    ],
)
def test_string_check_of_foreign_and_empty_texts(operation, output, reference, score):
    tree = {"type": "string_check", "operation": operation, **TEXT}
    assert grade(tree, output, answer=reference).score == score


@pytest.mark.parametrize("output", ["[" * 100_000, '{"a":' * 100_000, "9" * 10_000, "\ud800", "\0"])
def test_an_answer_that_no_parser_likes_has_a_score(output):
    for tree in (EXACT, NEAR, {**NEAR, "evaluation_metric": "bleu"}):
        assert grade(tree, output).score < 0.001


@settings(max_examples=100, deadline=None)
@given(output=st.text(max_size=50), reference=st.text(max_size=50))
def test_every_answer_gets_the_marks_of_its_operation(output, reference):
    scores = {name: grade({**EXACT, "operation": name}, output, answer=reference).score for name in OPERATIONS}
    assert scores["eq"] + scores["ne"] == 1.0
    assert scores["like"] <= scores["ilike"]


@pytest.mark.parametrize("vectors", [[[1.0], [1.0, 2.0]], [[float("nan")], [1.0]], [[1.0]], []])
def test_embeddings_that_cannot_be_compared_are_a_failure(scripted, vectors):
    embedder = scripted("")
    embedder.embed = lambda texts: vectors
    tree = {"type": "text_similarity", "evaluation_metric": "cosine", **TEXT}
    graded = grade(tree, "ab", Tools(embedder=embedder))
    assert (graded.score, graded.failure.kind) == (None, "model_grader_server_error")
