"""Whether an answer comes to the number or the formula that is asked for, however it is written.

    "... so she sold $\\frac{144}{2}$ clips: \\boxed{72}."  -->  72  ==  "72"  -->  1

Extracting the last answer and comparing formulas are math-verify's (an extra of this package). It evaluates
what a model wrote, so it runs where a python grader does: in a process of its own, behind the fence, with
little time. An answer that breaks it or takes too long is a wrong one, if the reference alone does neither; one
whose process was killed from outside is a failure.
"""

from importlib.util import find_spec

from assay.base.errors import NotInstalledError
from assay.scoring.python_process import Limits, PythonProcess, PythonResult

LIMITS = Limits(seconds=5.0, clock_s=60.0)
"""For one answer; the first one also brings the packages in. Of processor time, unlike math-verify's own
limits: an answer that is judged again gets the same mark on a busy machine."""

PACKAGE = "math_verify"

# A reference is nothing but its answer, so it is boxed, unless it shows where its answer stands.
SOURCE = r"""
import logging

from math_verify import parse, verify

logging.disable(logging.CRITICAL)


def grade(sample, item):
    reference = item["reference"].strip()
    shows = any(mark in reference for mark in ("\\boxed", "$", "\\(", "\\[", "####"))
    wanted = parse(reference if shows else f"\\boxed{{{reference}}}", parsing_timeout=None)
    if not wanted:
        raise ValueError(f"the reference {reference!r:.200} holds no number and no formula")
    return verify(wanted, parse(sample["text"], parsing_timeout=None), timeout_seconds=None)
"""


def math_process(fence: frozenset[str]) -> PythonProcess:
    """One that `math_answer` asks."""
    return PythonProcess(SOURCE, LIMITS, fence)


def math_answer(process: PythonProcess, text: str, reference: str) -> PythonResult:
    """1 if the last answer in the text is the reference's, else 0; a failure where the reference has none."""
    result = process.grade({"text": text}, {"reference": reference})
    if (
        result.failure is None
        or result.failure.kind == "python_grader_killed"
        or process.grade({"text": reference}, {"reference": reference}).failure is not None
    ):
        return result
    return PythonResult(0.0)


def check_math_verify(who: str) -> None:
    """Raise `NotInstalledError` where the package is not installed that `who` needs."""
    if find_spec(PACKAGE) is None:
        raise NotInstalledError(
            f"{who} compares numbers and formulas with the package math-verify, which is not installed: "
            "pip install 'assay[math]'."
        )
