"""What tests of graders need of the kernel."""

from collections.abc import Callable
from contextlib import closing

import pytest

from assay.base.errors import ConfigError
from assay.scoring.python_process import PythonProcess


@pytest.fixture(scope="session")
def fenced(requires: Callable[[str, bool, str], None]) -> None:
    """The kernel grants the fence of python graders."""
    reason = ""
    try:
        with closing(PythonProcess("def grade(sample, item): return 0")) as process:
            process.grade({}, {})
    except ConfigError as error:
        reason = str(error)
    requires("landlock", not reason, reason)
