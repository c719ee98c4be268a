"""Whether python graders are fenced by the kernel, or trusted: the operator's word, never a grader's.

    --python-graders, told on as $ASSAY_PYTHON_GRADERS, else the home's settings.yaml, else fenced

The word is about this machine and who writes graders for it. It is no part of a suite or recipe, which may come
from strangers, and no part of what is computed: a grader that runs under both gives the same score.
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
    """The parts of the fence that python graders run behind here."""
    setting = os.environ.get(VARIABLE, "")
    if setting not in ("", *WORDS):
        raise ConfigError(f"{VARIABLE}={setting!r}: give one of these: {', '.join(WORDS)}.")
    is_trusted = (setting or Home.from_environment().settings().python_graders) == _TRUSTED
    return frozenset() if is_trusted else FENCE


def check_fence(graders: Iterable[Grader]) -> None:
    """Raise `ConfigError` where one of them runs what others wrote, and this kernel cannot keep it in, or where
    the package that one needs is missing.

    A process is tried, for a container's profile may forbid what the kernel can. It reads no grader.
    """
    selected = [*graders]
    for single in (single for grader in selected for single in single_graders(grader)):
        if isinstance(single, MathAnswer):
            check_math_verify(f"grader '{single.name}'")
    if any(map(has_own_process, selected)) and (fence := required_fence()):
        with closing(PythonProcess("def grade(sample, item): return 0", fence=fence)) as process:
            process.grade({}, {})
