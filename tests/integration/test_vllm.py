"""Runs that learn from what a real vLLM draws: handed over, corrected, killed. `make test-vllm` has its environment.

One engine serves a policy whose output matrix is its input embedding, in float32; the other one of its own, in
bfloat16. Both run on the CPU.
"""

import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers.models.llama.modeling_llama import LlamaForCausalLM

from agreement.tiny_models import save_tiny
from assay.base.clock import SystemClock
from assay.base.config import LoadedConfig
from assay.base.errors import ConfigError
from assay.elastic.faults import FaultPlan
from assay.elastic.supervisor import RestartPolicy, Supervisor
from assay.inference.remote import EngineAwayError
from assay.models.exporting import ExportOptions
from assay.store.commit_log import CommitLog
from assay.store.home import Home
from assay.store.metrics.recorded import recorded_steps
from assay.store.objects import open_store
from assay.training.audit import audit_run
from assay.training.methods.grpo import remote
from assay.workflows.run import create_run
from method_runs import digest
from prompt_rows import grpo_recipe, prompt_dataset

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
PYTHON = os.environ.get("ASSAY_VLLM_PYTHON", "")
START_S = 600.0
"""It takes 40 s of CPU time, and minutes on a machine that has other work."""


class Engine:
    """A vLLM in a session of its own, so that a kill reaches all its processes."""

    def __init__(self, policy: Path, log: Path, *, dtype: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.policy, self._log, self._dtype = policy, log, dtype
        self.start()

    def start(self) -> None:
        command = [PYTHON, "-m", "vllm.entrypoints.openai.api_server", "--model", self.policy, "--served-model-name"]
        command += ["policy", "--generation-config", "vllm", "--logprobs-mode", "processed_logprobs"]
        command += ["--max-model-len", "64", "--dtype", self._dtype, "--enforce-eager"]
        command += ["--host", "127.0.0.1", "--port", self.port]
        variables = {
            "VLLM_SERVER_DEV_MODE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1",
        }  # fmt: skip
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [str(part) for part in command],
                env={**os.environ, **variables}, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def wait(self) -> None:
        """Until it answers."""
        end_s = time.monotonic() + START_S
        while self._process.poll() is None and time.monotonic() < end_s:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/weight_info", timeout=5).close()
                return
            except OSError:
                time.sleep(0.5)
        pytest.fail(f"vLLM did not start: {self._log.read_text()[-3000:]}")

    def kill(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


@pytest.fixture(scope="module")
def engines(
    requires: Callable[[str, bool, str], None], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Engine]]:
    requires("vllm", bool(PYTHON), "not installed here (make test-vllm)")
    folder, dtypes = tmp_path_factory.mktemp("engines"), {"tied": "float32", "untied": "bfloat16"}
    started = {}
    try:
        for name, dtype in dtypes.items():
            policy = save_tiny(LlamaForCausalLM, folder / name, seed=3, tied=name == "tied", head_dim=32)
            started[name] = Engine(policy, folder / f"{name}.log", dtype=dtype)
        for engine in started.values():
            engine.wait()
        yield started
    finally:
        for engine in started.values():
            engine.kill()


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prompt_dataset(tmp_path_factory.mktemp("prompts"))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))


def recipe(dataset: Path, engine: Engine, tmp_path: Path, **gap: Any) -> dict[str, Any]:
    """Twelve steps with a commit at every fourth."""
    (tmp_path / "handover").mkdir(exist_ok=True)
    tree = grpo_recipe(dataset, engine.policy)
    tree["method"]["sampler"] = {
        "type": "remote", "url": f"http://127.0.0.1:{engine.port}/v1", "model": "policy",
        "folder": str(tmp_path / "handover"), "max_retries": 2, "timeout_s": 120.0, "logprob_gap": gap,
    }  # fmt: skip
    return tree


def steps_of(name: str, attempt: int | None = None) -> dict[int, dict[str, float]]:
    steps = recorded_steps(Path(Home.from_environment().run(name).run_dir), attempt=attempt)
    return {step: recorded.values for step, recorded in steps.items()}


def test_a_killed_run_learns_from_its_own_weights_in_every_step(
    dataset: Path, engines: dict[str, Engine], tmp_path: Path
) -> None:
    kill = FaultPlan.model_validate({"faults": [{"type": "kill", "attempt": 1, "step": 7}]})
    digest(recipe(dataset, engines["tied"], tmp_path), "tied", RestartPolicy(world_sizes=(2, 1), faults=kill))
    gaps = [values["logprob_gap"] for values in steps_of("tied").values()]
    assert len(gaps) == 12 and max(gaps) < 2e-6, gaps
    before, after = steps_of("tied", 1), steps_of("tied", 2)
    again = sorted(set(before) & set(after))
    compared = ("rollout_digest", "loss", "reward", "logprob_gap")
    assert again and all(before[step][name] == after[step][name] for step in again for name in compared)


def test_a_policy_that_another_precision_samples_stays_near_its_first_gap_and_is_corrected(
    dataset: Path, engines: dict[str, Engine], tmp_path: Path
) -> None:
    tree = recipe(dataset, engines["untied"], tmp_path, bound=1e-3, on_excess="truncate")
    digest(tree, "untied", RestartPolicy())
    steps = steps_of("untied")
    gaps = [values["logprob_gap"] for values in steps.values()]
    assert len(gaps) == 12 and min(gaps) > 1e-4 and max(gaps) < min(0.05, 4 * min(gaps)), gaps
    assert all(values["weighed"] > 0.1 for values in steps.values())


def test_a_run_whose_engine_is_killed_goes_on_with_the_next_one(
    dataset: Path, engines: dict[str, Engine], tmp_path: Path
) -> None:
    engine = engines["tied"]

    class Kills:
        """The engine dies when the first commit is there."""

        def attempt_began(self, *_: Any) -> None:
            pass

        def tick(self, *_: Any) -> None:
            if log.commits():
                engine.kill()

        def attempt_ended(self, *_: Any) -> None:
            pass

    run = create_run(Home.from_environment(), LoadedConfig(recipe(dataset, engine, tmp_path), {}), run_id="alone")
    log = CommitLog(open_store(run.store_url))
    with pytest.raises(EngineAwayError, match="Commits are intact"):
        Supervisor(run, log, policy=RestartPolicy(), observers=[Kills()], clock=SystemClock()).run(1)
    assert log.commits() and log.finished() is None
    engine.start()
    engine.wait()
    Supervisor(run, log, policy=RestartPolicy(), observers=[], clock=SystemClock()).run(1)
    assert log.finished() is not None and audit_run(run, log).verdict == "pass"
    assert max(values["logprob_gap"] for values in steps_of("alone").values()) < 2e-6


def test_a_handover_without_the_output_matrix_is_refused(
    dataset: Path, engines: dict[str, Engine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM 0.32 keeps the old one, and says so in a line of its log only."""
    monkeypatch.setattr(remote, "ExportOptions", lambda writes_head: ExportOptions())
    tree = LoadedConfig(recipe(dataset, engines["tied"], tmp_path), {})
    with pytest.raises(ConfigError, match="it does not follow the weights"):
        create_run(Home.from_environment(), tree, run_id="refused")
    assert not list(Home.from_environment().runs())
