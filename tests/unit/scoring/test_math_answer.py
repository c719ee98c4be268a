"""Numbers and formulas are compared by what they mean, with a known error; what breaks that is wrong."""

import json
from collections.abc import Iterator
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from assay.base.errors import ConfigError
from assay.scoring import math_answer as module
from assay.scoring.grade import Grade, ItemFailure
from assay.scoring.grader_runner import GraderRunner, sample_values
from assay.scoring.graders import MathAnswer, Multi
from assay.scoring.python_graders import check_fence

LABELLED = Path(__file__).with_name("math_answers.jsonl")
GRADER = MathAnswer(input="{{ sample.output_text }}", reference="{{ item.answer }}")
MISTAKES = {
    ("10", "It costs \\$10.00"): 0.0,
    ("10", "10%"): 1.0,
    ("3/4", "75\\%"): 0.0,
    ("x^2+1", "\\boxed{(x+i)(x-i)}"): 0.0,
    ("1.5e3", "1500"): 0.0,
    ("7", "\\boxed{3}, no, wait: \\boxed{7}"): 0.0,
}
"""What math-verify 0.9 says of them."""


@pytest.fixture(scope="module")
def runner() -> Iterator[GraderRunner]:
    with closing(GraderRunner(GRADER)) as found:
        yield found


@pytest.fixture
def installed(requires) -> None:
    requires("math", find_spec(module.PACKAGE) is not None, "math-verify is not installed (the extra 'math')")


@pytest.mark.slow
def test_of_labelled_answers_it_errs_in_those_that_the_documents_tell(installed, request):
    rows = [json.loads(line) for line in LABELLED.read_text(encoding="utf-8").splitlines()]
    samples = [sample_values(row["answer"], {"answer": row["reference"]}) for row in rows]
    grades = request.getfixturevalue("runner").grade(samples)
    wrong = {
        (row["reference"], row["answer"]): grade.score
        for row, grade in zip(rows, grades, strict=True)
        if grade.score != float(row["is_right"])
    }
    right = sum(row["is_right"] for row in rows)
    refused, passed = (list(wrong.values()).count(score) for score in (0.0, 1.0))
    print(f"{refused} of {right} right answers refused, {passed} of {len(rows) - right} wrong ones pass")
    assert wrong == MISTAKES


@pytest.mark.slow
@pytest.mark.parametrize("text", [r"\boxed{9^{9^{9^{9}}}}", r"\boxed{100!!}", r"\boxed{" * 400, "7" * 100_000])
def test_an_answer_that_breaks_it_is_wrong_and_the_next_one_is_judged(installed, request, text):
    runner = request.getfixturevalue("runner")
    broken, after = runner.grade([sample_values(text, {"answer": "8"}) for text in (text, "8")])
    assert (broken.score, after.score) == (0.0, 1.0)


@pytest.mark.slow
def test_a_reference_without_an_answer_is_a_failure_and_no_zero(installed, request):
    (grade,) = request.getfixturevalue("runner").grade([sample_values("8", {"answer": " "})])
    assert grade.score is None and grade.failure.kind == "python_grader_runtime_error"
    assert "holds no number and no formula" in grade.failure.text


def test_without_its_package_it_is_refused_before_anything_is_asked(monkeypatch):
    monkeypatch.setattr(module, "PACKAGE", "math_verify_that_nobody_has")
    multi = Multi(graders={"sum": GRADER}, calculate_output="sum")
    for grader in (GRADER, multi):
        with pytest.raises(ConfigError, match=r"pip install 'assay\[math\]'"):
            GraderRunner(grader)
        with pytest.raises(ConfigError, match="math-verify, which is not installed"):
            check_fence([grader])


class Killed:
    """A process that is killed whatever it is asked."""

    def grade(self, *_: Any) -> Grade:
        return Grade(None, ItemFailure("python_grader_killed", "the grader's process ended"))


class KilledOnce(Killed):
    def grade(self, sample: Any, item: Any) -> Grade:
        return Grade(1.0) if sample["text"] == item["reference"] else super().grade(sample, item)


@pytest.mark.parametrize("process", [Killed(), KilledOnce()])
def test_an_answer_whose_process_was_killed_is_a_failure_and_not_wrong(process: Any) -> None:
    assert module.math_answer(process, "x = 1", "1").score is None
    assert module.math_answer(process, "x = 1", "1").failure is not None
