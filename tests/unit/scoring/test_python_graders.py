"""Who may say that python graders run without a fence; and a kernel that has none to give."""

import subprocess
import sys
from pathlib import Path

import pytest

import older_kernel
from assay.base.errors import ConfigError
from assay.scoring.python_fence import FENCE
from assay.scoring.python_graders import VARIABLE, check_fence, required_fence

GRADE = """
from contextlib import closing
from assay.base.errors import ConfigError
from assay.scoring.grader_runner import GraderRunner, sample_values
from assay.scoring.graders import PythonGrader
from assay.scoring.python_graders import check_fence
source = "import pathlib\\ndef grade(sample, item): return len(pathlib.Path('/etc/passwd').read_text()) > 0"
try:
    check_fence([PythonGrader(source=source)])
    with closing(GraderRunner(PythonGrader(source=source))) as runner:
        print(runner.grade([sample_values("x", {})])[0])
except ConfigError as error:
    print(error)
"""


def graded(home: Path, *, lacks: str | None = None, word: str = "") -> str:
    before = [] if lacks is None else [sys.executable, older_kernel.__file__, lacks]
    environment = {"ASSAY_HOME": str(home), VARIABLE: word, "PYTHONPATH": ":".join(sys.path)}
    command = [*before, sys.executable, "-c", GRADE]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(
    ("lacks", "missing"),
    [("landlock", "no files (Landlock: Function not implemented)"), ("seccomp", "no system calls (seccomp: ")],
)
def test_where_the_kernel_cannot_fence_it_nothing_is_run_unless_it_is_trusted(
    lacks: str, missing: str, tmp_path: Path, fenced: None
) -> None:
    refused = graded(tmp_path, lacks=lacks)
    assert missing in refused
    assert "--python-graders trusted" in refused
    assert "score=1.0" in graded(tmp_path, lacks=lacks, word="trusted")


def test_the_word_of_a_home_holds_unless_the_environment_says_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path))
    monkeypatch.delenv(VARIABLE, raising=False)
    assert required_fence() == FENCE
    (tmp_path / "settings.yaml").write_text("python_graders: trusted\n")
    assert required_fence() == frozenset()
    monkeypatch.setenv(VARIABLE, "fenced")
    assert required_fence() == FENCE
    monkeypatch.setenv(VARIABLE, "sandboxed")
    with pytest.raises(ConfigError, match="ASSAY_PYTHON_GRADERS='sandboxed': expected one of"):
        required_fence()


def test_a_grader_that_is_trusted_may_do_what_we_may(tmp_path: Path) -> None:
    assert "score=1.0" in graded(tmp_path, word="trusted")


def test_one_that_is_not_may_not_on_a_kernel_that_fences(tmp_path: Path, fenced: None) -> None:
    assert "PermissionError: [Errno 13] Permission denied: '/etc/passwd'" in graded(tmp_path)


def test_where_there_is_no_python_grader_nothing_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "sandboxed")
    check_fence([])
