"""Runs what the hypotheses of a case predict, and writes down what came of it.

Each command is a process of this interpreter, `python -m assay ... --json`, on the same home; never a shell,
and only commands that ask (`triage.case.questions`), whatever the case's file says. What two hypotheses ask is
run once. CaseEvidence is written as it comes, so that a check that is cut off keeps what it had.
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
from assay.triage.case.expectation import ANSWERS, CommandAnswer, judge, parse_expectation
from assay.triage.case.notebook import with_evidence, with_hypothesis
from assay.triage.case.propose import proposals, steps_to_replay
from assay.triage.case.questions import json_command

TIMEOUT_S = 3_600.0
SAID_CHARACTERS = 300


class _Asked(NamedTuple):
    answer: CommandAnswer
    output_sha256: str
    took_s: float


@dataclass
class Questions:
    """Asks assay, each question once."""

    environment: Mapping[str, str]
    clock: Clock
    say: Callable[[str], None] = lambda text: None
    """Told each command before it is run."""
    timeout_s: float = TIMEOUT_S
    _asked: dict[tuple[str, ...], _Asked] = field(default_factory=dict)

    def ask(self, command: tuple[str, ...]) -> _Asked:
        """What a command of assay says; `command` are the words behind `assay`."""
        if command not in self._asked:
            began_s = self.clock.monotonic_s()
            answer, output = self._run(command)
            took_s = max(self.clock.monotonic_s() - began_s, 0.0)
            self._asked[command] = _Asked(answer, sha256_of_bytes(output), took_s)
        return self._asked[command]

    def _run(self, command: tuple[str, ...]) -> tuple[CommandAnswer, bytes]:
        try:
            words = json_command(command)
        except AssayError as error:
            return CommandAnswer(None, None, str(error)), b""
        self.say(" ".join(("assay", *command)))
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
            return CommandAnswer(None, None, f"it did not end within {self.timeout_s:g} s"), b""
        except (OSError, ValueError) as error:
            return CommandAnswer(None, None, f"it could not be started: {error}"), b""
        return _answer(done), done.stdout


def _answer(done: subprocess.CompletedProcess[bytes]) -> CommandAnswer:
    said = done.stderr.decode("utf-8", "replace").strip().splitlines()
    last = said[-1][:SAID_CHARACTERS] if said else "it said nothing"
    if done.returncode not in ANSWERS:
        return CommandAnswer(done.returncode, None, f"exit {done.returncode}: {last}")
    try:
        return CommandAnswer(done.returncode, json.loads(done.stdout), "")
    except ValueError:
        return CommandAnswer(done.returncode, None, f"exit {done.returncode} without an answer: {last}")


def check_case(home: Home, name: str, questions: Questions, *, proposes: bool) -> Case:
    """Propose what the symptoms suggest, run every prediction, and write down what came of it."""
    case = saved_case(home, name)
    if proposes:
        case = _with_proposals(home, case, questions)
    for index, prediction in enumerate(case.predictions):
        asked = questions.ask(prediction.command)
        judged = judge(parse_expectation(prediction.expect), asked.answer)
        evidence = CaseEvidence(
            prediction=index,
            outcome=judged.outcome,
            seen=judged.seen,
            exit_code=asked.answer.exit_code,
            output_sha256=asked.output_sha256,
            code_version=code_version(),
            at_s=questions.clock.now_s(),
            took_s=asked.took_s,
        )
        change_case(home, name, lambda case, found=evidence: with_evidence(case, found))  # type: ignore[misc]
    return saved_case(home, name)


def _with_proposals(home: Home, case: Case, questions: Questions) -> Case:
    steps = steps_to_replay(case)
    audits = [questions.ask(step.command()).answer.tree for step in steps]
    proposed = proposals(steps, audits, case.symptoms.shared, _datasets(home, case))

    def with_proposed(case: Case) -> Case:
        for each in proposed:
            case = with_hypothesis(case, each.text, each.predicted, by="", now_s=questions.clock.now_s())
        return case

    return change_case(home, case.name, with_proposed) if proposed else case


def _datasets(home: Home, case: Case) -> dict[str, str]:
    """Run -> the beginning of its dataset's fingerprint, where the symptoms share a dataset."""
    if not any("dataset" in each.factors for each in case.symptoms.shared):
        return {}
    runs = sorted(home.runs(), key=lambda run: -run.created_s)
    return {run.run_id: run.dataset_fingerprint[:SHOWN_FINGERPRINT] for run in runs}
