"""Run the command `assay` in this process: its imports and its fork server cost once for all tests of a session."""

import io
import json
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from assay.cli.main import main


def assay(*arguments: object) -> int:
    """Run the command; return its exit code."""
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return int(ended.value.code or 0)


class CommandOutput(NamedTuple):
    """What a command printed."""

    out: str
    err: str


class AssayAt:
    """Runs commands on one home, in one working directory. What ranks print goes where the test's output goes."""

    def __init__(self, home: Path, folder: Path | None = None) -> None:
        self.home, self.folder = home, folder or home.parent

    def __call__(self, *arguments: object, code: int = 0) -> CommandOutput:
        """Run a command that ends with `code`."""
        out, err = io.StringIO(), io.StringIO()
        with pytest.MonkeyPatch.context() as patch, chdir(self.folder), redirect_stdout(out), redirect_stderr(err):
            patch.setenv("ASSAY_HOME", str(self.home))
            patch.delenv("ASSAY_LEDGER", raising=False)
            ended = assay(*arguments)
        output = CommandOutput(out.getvalue(), err.getvalue())
        assert ended == code, f"{arguments}: exit code {ended}\n{output.out}{output.err}"
        return output

    def json(self, *arguments: object, code: int = 0) -> Any:
        """Run a command with `--json`; return the value it prints."""
        return json.loads(self(*arguments, "--json", code=code).out)
