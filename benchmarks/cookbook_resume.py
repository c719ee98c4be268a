"""How the loops of tinker-cookbook resume on a server and a worker of assay, judged as `assay check resume` does.

Such a loop has no torch of its own, so its steps are the requests that it submits. The server carries them out in that
order: what made the last weights are those before the saved state that was loaded, and those after it.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from assay.checks.resume.check import EXERCISES, ExerciseResult, ResumeCheck
from assay.checks.resume.document import check_view
from assay.checks.resume.observed import ObservedStep, ObservedTraining, TrainingState
from assay.checks.resume.properties import (
    Baseline,
    PropertyResult,
    Results,
    compare_training,
    fails,
    first_history,
    holds,
)
from assay.data.dataset.tokens import train_tokenizer
from harness import CHECKOUT

SCRIPT = CHECKOUT / "benchmarks" / "resume_scripts" / "cookbook_loop.py"
PYTHON = CHECKOUT / ".venv-cookbook" / "bin" / "python"
TIMEOUT_S = 900.0
RESUMED = "create_training_client_from_state_with_optimizer"
STOPS = {
    "step": [("optim_step", 24)],
    "startup": [("optim_step", 24), (RESUMED, 1)],
    "save": [("save_state", 4)],
    "last-step": [("optim_step", 32)],
    "sigterm": [("optim_step", 24)],
}
"""Exercise -> the requests after which an attempt is ended, each by its kind and number."""
UNKNOWN = TrainingState("", "", ())
"""Weights and moments are the server's."""
SEEN = ("resumes", "newest", "rows", "order", "learning_rate", "loss", "sigterm", "exit_code")
NETWORK = {
    "type": "new",
    "vocab_size": 410,
    "hidden_size": 32,
    "num_layers": 1,
    "num_heads": 4,
    "intermediate_size": 64,
    "max_tokens": 512,
}


class Attempt(NamedTuple):
    """One start of a loop."""

    requests: list[dict[str, Any]]
    exit_code: int
    output: str
    losses: dict[int, float]
    """Step, from 0 -> mean loss of a token, as the loop logs it."""

    def training(self, num_steps: int = 0) -> ObservedTraining:
        """Return its steps; `num_steps`: of an undisturbed run, of which they are the last."""
        rows: list[str] = []
        steps: list[ObservedStep] = []
        rates = [line for line in self.requests if line["kind"] == "optim_step"]
        first = max(0, num_steps - len(rates))
        for line in self.requests:
            if line["kind"] == "forward_backward":
                rows += line["rows"]
            elif line["kind"] == "optim_step":
                loss = self.losses.get(first + len(steps), 0.0)
                steps.append(ObservedStep(tuple(rows), loss, (line["rate"],), "", UNKNOWN, 0.0))
                rows = []
        return ObservedTraining(UNKNOWN, tuple(steps), (), 1)

    def steps_before(self, name: str) -> int:
        """Return how many steps had been submitted when the state of a name was saved."""
        kinds = [(line["kind"], line.get("name")) for line in self.requests]
        return sum(kind == "optim_step" for kind, _ in kinds[: kinds.index(("save_state", name))])


class Loop:
    """A loop in a folder of its own, which starts again and again."""

    def __init__(self, folder: Path, models: Path, arguments: Sequence[str]) -> None:
        folder.mkdir()
        (folder / "chat").symlink_to(models / "chat")
        self._folder, self._arguments = folder, arguments

    def run(self, stop: tuple[str, int] | None = None, number: int = signal.SIGKILL) -> Attempt:
        """Start it, and wait for its end."""
        command = [str(PYTHON), "-W", "ignore", str(SCRIPT), "--folder", str(self._folder), *self._arguments]
        if stop:
            command += ["--stop", stop[0], str(stop[1]), "--signal", str(int(number))]
        environment = {**os.environ, "TINKER_API_KEY": "tml-any", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        # A kill may cut a character in two.
        ended = subprocess.run(
            command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            timeout=TIMEOUT_S,
        )
        file = self._folder / "requests.jsonl"
        metrics = self._lines("log/metrics.jsonl")
        losses = {line["step"]: line["train_mean_nll"] for line in metrics if "train_mean_nll" in line}
        attempt = Attempt(self._lines(file.name), ended.returncode, ended.stdout, losses)
        file.unlink(missing_ok=True)
        return attempt

    def newest_state(self) -> str:
        """Return the path of the newest state that the loop has noted."""
        lines = self._lines("log/checkpoints.jsonl")
        return next((line["state_path"] for line in lines[::-1] if "state_path" in line), "")

    def _lines(self, name: str) -> list[dict[str, Any]]:
        with suppress(FileNotFoundError):
            return [json.loads(line) for line in (self._folder / name).read_text().splitlines()]
        return []


def check_loop(arguments: Sequence[str], exercises: Sequence[str]) -> dict[str, Any]:
    """Return the JSON of a check of a loop, of what can be seen of it."""
    if not PYTHON.exists():
        return {"error": "the cookbook is not installed (make .venv-cookbook/.installed)"}
    with tempfile.TemporaryDirectory() as scratch, served(Path(scratch)) as url:
        models, options = Path(scratch, "models"), [*arguments, "--url", url]
        whole = [Loop(Path(scratch, f"whole-{number}"), models, options).run() for number in range(2)]
        if any(attempt.exit_code for attempt in whole):
            return {"error": f"undisturbed, it ended with {whole[0].exit_code}: {whole[0].output[-300:]}"}
        baseline = Baseline(*(attempt.training() for attempt in whole))
        found = []
        for name in exercises:
            if stops := STOPS.get(name):
                loop = Loop(Path(scratch, name), models, options)
                number = signal.SIGTERM if name == "sigterm" else signal.SIGKILL
                attempts = [loop.run(stop, number) for stop in stops]
                found.append(_resumed(baseline, name, loop, attempts))
    view = check_view(ResumeCheck(baseline, 0.0, tuple(found), ()), ())
    return {**view.model_dump(mode="json"), "version": _version()}


def _resumed(baseline: Baseline, name: str, loop: Loop, attempts: Sequence[Attempt]) -> ExerciseResult:
    """Resume to the end, and judge."""
    newest = loop.newest_state()
    last, first = loop.run(), attempts[0]
    stopped = len(first.training().steps)
    codes = (*(attempt.exit_code for attempt in attempts), last.exit_code)
    results: Results = {}
    if name == "sigterm":
        results = {"sigterm": holds(f"exit code {first.exit_code}"), "exit_code": holds()}
        if first.exit_code == 0:
            results["exit_code"] = fails("0 after SIGTERM")
    loaded = next((line["path"] for line in last.requests if line["kind"] == RESUMED), None)
    if last.exit_code or loaded is None:
        results["resumes"] = fails(f"exit code {last.exit_code}, from state {loaded}: {last.output[-300:]}")
        return ExerciseResult(name, EXERCISES[name], results, stopped, exit_codes=codes)
    start = first.steps_before(loaded.rpartition("/")[2])
    results["newest"] = holds() if loaded == newest else fails(f"went on from {loaded}, though {newest} was noted")
    results["resumes"] = holds(f"from step {start}")
    total = len(baseline.steps)
    compared = compare_training(baseline, first_history(first.training()), last.training(total), start, 0.0)
    results |= {key: result for key, result in compared.items() if key in SEEN and (key != "loss" or last.losses)}
    if start + len(last.training().steps) != total:  # the rate of a batch, in a step of another number
        results["learning_rate"] = PropertyResult("follows", "not compared, because steps are repeated or missing")
    return ExerciseResult(name, EXERCISES[name], results, stopped, start, exit_codes=codes)


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a tiny base model with random weights; yield the URL."""
    models = folder / "models"
    (models / "chat").mkdir(parents=True)
    tokenizer = train_tokenizer(["User: What is 4 + 5?", "Assistant: 9"], vocab_size=400)
    tokenizer.save(str(models / "chat" / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>"}
    (models / "chat" / "tokenizer_config.json").write_text(json.dumps(settings))
    recipe = {
        "loader": {"lanes": 8, "global_batch_size": 8, "threads": 1},
        "method": {"type": "sft", "train_on": "spans", "model": NETWORK},
    }
    method = {"max_tokens": NETWORK["max_tokens"], "recipe": recipe}
    (models / "chat.yaml").write_text(yaml.safe_dump({"tokenizer": "chat", "methods": {"supervised": method}}))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {**os.environ, "ASSAY_HOME": str(folder / "home"), "OMP_NUM_THREADS": "1"}
    commands = [["serve", "--models", str(models), "--port", str(port)], ["serve", "sessions"]]
    (folder / "home").mkdir()
    with (folder / "service.log").open("w") as log:
        services = [
            subprocess.Popen([sys.executable, "-m", "assay", *command], env=environment, stdout=log, stderr=log)
            for command in commands
        ]
        try:
            until_s = time.monotonic() + TIMEOUT_S
            while time.monotonic() < until_s:
                with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                    break
                time.sleep(0.1)
            yield f"http://127.0.0.1:{port}"
        finally:
            for service in services:
                service.terminate()
            for service in services:
                service.wait()


def _version() -> str:
    code = "import importlib.metadata; print(importlib.metadata.version('tinker_cookbook'))"
    return subprocess.run([PYTHON, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
