"""Verdicts in the words of judges."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.scoring.grader_runner import MAX_BRACES, label_in, result_in

NOISE = st.lists(
    st.sampled_from(
        [
            r"\frac{1}{2}",
            r"\boxed{x}",
            "{",
            "}",
            "{}",
            "}{",
            r"\{a, b\}",
            "```",
            '"',
            "{'result': 3}",
            "é",
            "\n",
            "[{",
        ]
    ),
    max_size=8,
).map(" ".join)


def test_answers_in_words_are_read_only_where_they_are_the_whole_answer():
    assert result_in("about 7") is None
    assert label_in("It is good", ("good", "bad")) is None
    assert label_in("good", ("good", "bad")) == "good"


@settings(max_examples=300, deadline=None)
@given(before=NOISE, after=NOISE, result=st.floats(0, 1))
def test_a_verdict_is_found_whatever_stands_around_it(before, after, result):
    assert result_in(f"{before} {json.dumps({'steps': [before], 'result': result})} {after}") == result


@pytest.mark.parametrize(
    ("text", "result"),
    [
        (r'$\frac{a}{b}$ is right. {"result": 1}', 1.0),
        (r'{"steps": ["so \(x\) and \sqrt{2} \in \mathbb{R}"], "result": 0.5}', 0.5),
        ('{"steps": ["a line\nand another"], "result": 0.5}', 0.5),
        ('The answer held {"result": 1} itself, which is wrong: {"result": 0}', 0.0),
        ('{"result": 0, "quoted": {"result": 1}}', 0.0),
        ('{"steps": [{"result": 1}], "result": 0}', 0.0),
        (r"\boxed{1}", None),
        ('{"result": "' + "9" * 400 + '"}', None),
        ('{"a":' * 50_000, None),
        ("{" * 50_000 + '{"result": 1}', None),  # more braces than are tried
        ("", None),
    ],
)
def test_the_last_whole_object_says_the_result(text, result):
    assert result_in(text) == result


def test_a_label_is_read_beside_latex():
    assert label_in(r'\text{so} {"label": "good"}', ("good", "bad")) == "good"
    assert label_in('{"label": ["good"]}', ("good", "bad")) is None
    assert MAX_BRACES < 50_000
