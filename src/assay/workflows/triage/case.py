"""Runs the commands that the hypotheses of a case predict, and records the evidence.

Each command is a process, `python -m assay ... --json`, on the same home; never a shell, and only read-only
commands (`triage.case.questions`), whatever the case's file contains. A command that two hypotheses share runs
once. Evidence is recorded as it arrives, so an interrupted check keeps it.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from assay.base.clock import Clock
from assay.base.code_version import code_version
from assay.base.digest import sha256_of_bytes
from assay.base.errors import AssayError
from assay.records.case import Case, CaseEvidence
from assay.store.home import Home
from assay.store.triage.cases import change_case, saved_case
from assay.triage.attempts.ledger import SHOWN_FINGERPRINT
from assay.triage.case.expectation import RESULT_EXIT_CODES, CommandOutput, judge, parse_expectation
from assay.triage.case.notebook import with_evidence, with_hypothesis
from assay.triage.case.propose import proposals, steps_to_replay
from assay.triage.case.questions import json_command

TIMEOUT_S = 3_600.0
MAX_MESSAGE_CHARACTERS = 300


class _CommandRun(NamedTuple):
    result: CommandOutput
    output_sha256: str
    took_s: float


@dataclass
class CommandRunner:
    """Runs commands of assay, each once."""

    environment: Mapping[str, str]
    clock: Clock
    on_command: Callable[[str], None] = lambda text: None
    """Called with each command before it runs."""
    timeout_s: float = TIMEOUT_S
    _command_runs: dict[tuple[str, ...], _CommandRun] = field(default_factory=dict)

    def run_command(self, command: tuple[str, ...]) -> _CommandRun:
        """Return the result of a command; `command` are the words after `assay`."""
        if command not in self._command_runs:
            began_s = self.clock.monotonic_s()
            result, output = self._run(command)
            took_s = max(self.clock.monotonic_s() - began_s, 0.0)
            self._command_runs[command] = _CommandRun(result, sha256_of_bytes(output), took_s)
        return self._command_runs[command]

    def _run(self, command: tuple[str, ...]) -> tuple[CommandOutput, bytes]:
        try:
            words = json_command(command)
        except AssayError as error:
            return CommandOutput(None, None, str(error)), b""
        self.on_command(" ".join(("assay", *command)))
        try:
            done = subprocess.run(
                [sys.executable, "-m", "assay", *words],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                env={**os.environ, **self.environment},
                timeout=self.timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return CommandOutput(None, None, f"it did not end within {self.timeout_s:g} s"), b""
        except (OSError, ValueError) as error:
            return CommandOutput(None, None, f"it could not be started: {error}"), b""
        return _parse_result(done), done.stdout


def _parse_result(done: subprocess.CompletedProcess[bytes]) -> CommandOutput:
    lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
    last = lines[-1][:MAX_MESSAGE_CHARACTERS] if lines else "no output"
    if done.returncode not in RESULT_EXIT_CODES:
        return CommandOutput(done.returncode, None, f"exit {done.returncode}: {last}")
    try:
        return CommandOutput(done.returncode, json.loads(done.stdout), "")
    except ValueError:
        return CommandOutput(done.returncode, None, f"exit {done.returncode} without an answer: {last}")


def check_case(home: Home, name: str, questions: CommandRunner, *, proposes: bool) -> Case:
    """Add the hypotheses that the symptoms suggest, run every prediction, and record the evidence."""
    case = saved_case(home, name)
    if proposes:
        case = _with_proposals(home, case, questions)
    for index, prediction in enumerate(case.predictions):
        command_run = questions.run_command(prediction.command)
        judgment = judge(parse_expectation(prediction.expect), command_run.result)
        evidence = CaseEvidence(
            prediction=index,
            outcome=judgment.outcome,
            seen=judgment.seen,
            exit_code=command_run.result.exit_code,
            output_sha256=command_run.output_sha256,
            code_version=code_version(),
            at_s=questions.clock.now_s(),
            took_s=command_run.took_s,
        )
        change_case(home, name, lambda case, found=evidence: with_evidence(case, found))  # type: ignore[misc]
    return saved_case(home, name)


def _with_proposals(home: Home, case: Case, questions: CommandRunner) -> Case:
    steps = steps_to_replay(case)
    audits = [questions.run_command(step.command()).result.tree for step in steps]
    proposed = proposals(steps, audits, case.symptoms.shared, _datasets(home, case))

    def with_proposed(case: Case) -> Case:
        for item in proposed:
            case = with_hypothesis(case, item.text, item.predicted, by="", now_s=questions.clock.now_s())
        return case

    return change_case(home, case.name, with_proposed) if proposed else case


def _datasets(home: Home, case: Case) -> dict[str, str]:
    """Return the prefix of the dataset fingerprint by run, if the symptoms share a dataset."""
    if not any("dataset" in cause.factors for cause in case.symptoms.shared):
        return {}
    runs = sorted(home.runs(), key=lambda run: -run.created_s)
    return {run.run_id: run.dataset_fingerprint[:SHOWN_FINGERPRINT] for run in runs}
