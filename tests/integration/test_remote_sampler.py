"""Runs of real processes that learn from what another engine draws: killed, resized, left alone by it."""

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from transformers.models.llama.modeling_llama import LlamaForCausalLM

from agreement.tiny_models import save_tiny
from assay.base.clock import SystemClock
from assay.cli.main import main
from assay.elastic.faults import FaultPlan
from assay.elastic.supervisor import RestartPolicy, Supervisor
from assay.inference.remote import EngineAwayError, EngineError
from assay.store.commit_log import CommitLog
from assay.store.home import Home
from assay.store.metrics.recorded import recorded_steps
from assay.store.objects import open_store
from assay.training.audit import audit_run
from assay.training.replay.request import ReplayRequest
from assay.workflows.replay import replay
from method_runs import digest
from prompt_rows import grpo_recipe, prompt_dataset

pytestmark = pytest.mark.slow
SERVER = Path(__file__).parents[1] / "completions_server.py"


class Engine:
    """A process that can die."""

    def __init__(self, folder: Path, location: Path, port: int = 0) -> None:
        port_file = location / f"address-{port}"
        port_file.unlink(missing_ok=True)
        command = [sys.executable, SERVER, folder, "--port-file", port_file, "--port", port]
        self.process = subprocess.Popen([str(part) for part in command])
        clock = SystemClock()
        while not port_file.exists():
            assert self.process.poll() is None, "it did not start"
            clock.sleep_s(0.05)
        self.url = port_file.read_text()
        self.port = int(self.url.rpartition(":")[2].partition("/")[0])

    def configure(self, **how: Any) -> int:
        """Completions that it was asked for so far."""
        request = urllib.request.Request(self.url.removesuffix("/v1") + "/misbehave", data=json.dumps(how).encode())
        with urllib.request.urlopen(request) as response:
            return int(json.loads(response.read())["requests"])

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prompt_dataset(tmp_path_factory.mktemp("prompts"))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = Engine(save_tiny(LlamaForCausalLM, tmp_path / "other", seed=4), tmp_path)
    yield engine
    engine.stop()


def recipe(dataset: Path, engine: Engine, tmp_path: Path, **keys: Any) -> dict[str, Any]:
    """Twelve steps with a commit at every fourth."""
    (tmp_path / "handover").mkdir(exist_ok=True)
    tree = grpo_recipe(dataset, tmp_path / "base")
    tree["method"]["sampler"] = {
        "type": "remote", "url": engine.url, "model": "policy", "folder": str(tmp_path / "handover"),
        "max_retries": 2, "timeout_s": 60.0, **keys,
    }  # fmt: skip
    return tree


COMPARED = ("rollout_digest", "loss", "reward", "logprob_gap")


def of_attempt(name: str, attempt: int) -> dict[int, list[float]]:
    steps = recorded_steps(Path(Home.from_environment().run(name).run_dir), attempt=attempt)
    return {step: [created.values[key] for key in COMPARED] for step, created in steps.items()}


def test_a_killed_run_learns_again_from_what_was_answered_before_and_is_replayed_without_an_engine(
    dataset: Path, engine: Engine, tmp_path: Path
) -> None:
    kills = [
        {"type": "kill", "attempt": 1, "step": 7},
        {"type": "kill", "attempt": 2, "step": 11, "rank": 1},
    ]
    policy = RestartPolicy(
        world_sizes=(2, 4, 1),
        parallel=("ddp", "fsdp2", "ddp"),
        faults=FaultPlan.model_validate({"faults": kills}),
    )
    digest(recipe(dataset, engine, tmp_path), "eventful", policy)
    first, second, third = (of_attempt("eventful", attempt) for attempt in (1, 2, 3))
    again = [
        (one[step], other[step]) for one, other in ((first, second), (second, third)) for step in one if step in other
    ]
    assert len(again) >= 2 and all(one == other for one, other in again)
    assert all(gap < 2e-6 for *_, gap in [*first.values(), *second.values(), *third.values()])
    assert not list(open_store(Home.from_environment().run("eventful").store_url).list("made/"))
    engine.stop()
    run = Home.from_environment().run("eventful")
    found = replay(run, CommitLog(open_store(run.store_url)), ReplayRequest(step=11))
    assert found.verdict == "equal" and "rollout_digest" in {comparison.quantity for comparison in found.at_step}


def test_a_run_whose_engine_dies_stops_whole_and_goes_on_when_there_is_one(
    dataset: Path, engine: Engine, tmp_path: Path
) -> None:
    from assay.base.config import LoadedConfig
    from assay.workflows.run import create_run

    class Kills:
        """The engine dies when the first commit is there."""

        def attempt_began(self, *_: Any) -> None:
            pass

        def tick(self, *_: Any) -> None:
            if log.commits():
                engine.stop()

        def attempt_ended(self, *_: Any) -> None:
            pass

    run = create_run(Home.from_environment(), LoadedConfig(recipe(dataset, engine, tmp_path), {}), run_id="alone")
    log = CommitLog(open_store(run.store_url))
    with pytest.raises(EngineAwayError, match="Commits are intact"):
        Supervisor(run, log, policy=RestartPolicy(), observers=[Kills()], clock=SystemClock()).run(2)
    assert log.commits() and log.finished() is None
    another = Engine(tmp_path / "base", tmp_path, port=engine.port)
    try:
        Supervisor(run, log, policy=RestartPolicy(), observers=[], clock=SystemClock()).run(1)
    finally:
        another.stop()
    assert log.finished() is not None and audit_run(run, log).verdict == "pass"


def test_a_run_whose_engine_stops_following_the_weights_ends_with_an_error_and_goes_on_with_a_sound_one(
    dataset: Path, engine: Engine, tmp_path: Path
) -> None:
    from assay.base.config import LoadedConfig
    from assay.workflows.run import create_run

    class Spoils:
        """From the first commit on, the engine keeps its weights and names those that it is handed."""

        def attempt_began(self, *_: Any) -> None:
            pass

        def tick(self, *_: Any) -> None:
            if log.commits():
                engine.configure(faults=["lying"])

        def attempt_ended(self, *_: Any) -> None:
            pass

    tree = recipe(dataset, engine, tmp_path, logprob_gap={"bound": 5.0})
    run = create_run(Home.from_environment(), LoadedConfig(tree, {}), run_id="spoiled")
    log = CommitLog(open_store(run.store_url))
    engine.configure(slow_s=0.1)  # eight steps take longer than to notice the commit
    with pytest.raises(EngineError, match=r"does not follow the weights|times as much as in step 1"):
        Supervisor(run, log, policy=RestartPolicy(), observers=[Spoils()], clock=SystemClock()).run(1)
    assert log.commits() and log.finished() is None
    engine.configure()
    Supervisor(run, log, policy=RestartPolicy(), observers=[], clock=SystemClock()).run(1)
    assert log.finished() is not None and audit_run(run, log).verdict == "pass"
    assert max(step.values["logprob_gap"] for step in recorded_steps(Path(run.run_dir)).values()) < 2e-6


def test_an_engine_that_cannot_be_used_leaves_no_run(
    dataset: Path, engine: Engine, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text(yaml.safe_dump(recipe(dataset, engine, tmp_path, max_retries=0)))

    def refused(code: int, words: str) -> None:
        with pytest.raises(SystemExit) as ended:
            main(["train", str(file), "--run-id", "refused"])
        output = capfd.readouterr().err
        assert ended.value.code == code and words in output, output
        assert not list(Home.from_environment().runs())

    engine.configure(faults=["text_only"])
    refused(2, "has no tokens with logprobs")
    engine.configure(faults=["stale"])
    refused(2, "it has other weights")
    engine.configure(faults=["lying"])
    refused(2, "it does not follow the weights")
    engine.stop()
    refused(75, "the engine does not respond")
