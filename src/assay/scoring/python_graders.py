"""Decides whether Python graders are fenced by the kernel or trusted. Only the operator can choose.

    --python-graders (passed on as $ASSAY_PYTHON_GRADERS), else the home's settings.yaml, else fenced

The setting belongs to the machine, not to a suite or recipe, which may come from strangers. It does not affect
scores: a grader that runs in both modes gives the same score.
"""

import os
from collections.abc import Iterable
from contextlib import closing

from assay.base.errors import ConfigError
from assay.scoring.graders import Grader, MathAnswer, has_own_process, single_graders
from assay.scoring.math_answer import check_math_verify
from assay.scoring.python_fence import FENCE
from assay.scoring.python_process import PythonProcess
from assay.store.home import Home

VARIABLE = "ASSAY_PYTHON_GRADERS"
WORDS = ("fenced", "trusted")
_TRUSTED = "trusted"


def required_fence() -> frozenset[str]:
    """Return the parts of the fence that the operator requires."""
    setting = os.environ.get(VARIABLE, "")
    if setting not in ("", *WORDS):
        raise ConfigError(f"{VARIABLE}={setting!r}: expected one of: {', '.join(WORDS)}.")
    is_trusted = (setting or Home.from_environment().settings().python_graders) == _TRUSTED
    return frozenset() if is_trusted else FENCE


def check_fence(graders: Iterable[Grader]) -> None:
    """Raise `ConfigError` if a grader needs a process that this kernel cannot fence, or a missing package.

    Starts a trial process, because a container's profile may forbid what the kernel supports.
    """
    selected = [*graders]
    for single in (single for grader in selected for single in single_graders(grader)):
        if isinstance(single, MathAnswer):
            check_math_verify(f"grader '{single.name}'")
    if any(map(has_own_process, selected)) and (fence := required_fence()):
        with closing(PythonProcess("def grade(sample, item): return 0", fence=fence)) as process:
            process.grade({}, {})
