"""Compares the last number or formula of a completion with a reference, independent of notation.

    "... so she sold $\\frac{144}{2}$ clips: \\boxed{72}."  -->  72  ==  "72"  -->  1

Extraction and comparison are done by math-verify (an optional extra). It evaluates model output, so it runs like a
Python grader: in a separate, fenced process with a time limit. A completion that crashes it or takes too long is
wrong, if the reference alone does neither. If the process was killed from outside, the item fails.
"""

from importlib.util import find_spec

from assay.base.errors import NotInstalledError
from assay.scoring.grade import Grade
from assay.scoring.python_process import Limits, PythonProcess

LIMITS = Limits(seconds=5.0, clock_s=60.0)
"""Limits of one comparison; the first also imports the packages. CPU time, unlike math-verify's own limits, so that
a repeated comparison gets the same score on a busy machine."""

PACKAGE = "math_verify"

# A plain reference is boxed, so that math-verify parses all of it as the answer.
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
    """Start the process that `math_answer` uses."""
    return PythonProcess(SOURCE, LIMITS, fence)


def math_answer(process: PythonProcess, text: str, reference: str) -> Grade:
    """Return 1 if the last answer in the text equals the reference, else 0; a failure if the reference is invalid."""
    result = process.grade({"text": text}, {"reference": reference})
    if (
        result.failure is None
        or result.failure.kind == "python_grader_killed"
        or process.grade({"text": reference}, {"reference": reference}).failure is not None
    ):
        return result
    return Grade(0.0)


def check_math_verify(who: str) -> None:
    """Raise `NotInstalledError` if math-verify, which `who` needs, is not installed."""
    if find_spec(PACKAGE) is None:
        raise NotInstalledError(
            f"{who} compares numbers and formulas with the package math-verify, which is not installed: "
            "pip install 'assay[math]'."
        )
