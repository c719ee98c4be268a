"""On a GPU, where there is one: bfloat16, and the same bits whatever dies; one rank, since NCCL wants a GPU for
each. `ASSAY_REQUIRE=cuda` makes it a failure that there is none."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from click.testing import CliRunner

from assay.base.config import LoadedConfig
from assay.base.errors import ConfigError
from assay.cli.main import cli
from assay.distributed.rank_device import device_of
from assay.elastic.faults import FaultPlan
from assay.elastic.supervisor import RestartPolicy
from assay.inference.local.generator import ON_GPU, Generator
from assay.inference.protocol import SamplingParams
from assay.inference.rollout import Prompt
from assay.records.replay import ReplayReport
from assay.records.run import Run
from assay.store.attempts import saved_attempts
from assay.store.commit_log import CommitLog
from assay.store.home import Home
from assay.store.objects import open_store
from assay.training.audit import audit_run
from assay.training.replay.request import ReplayRequest
from assay.training.trainer import context as context_module
from assay.training.trainer.config import OptimizerConfig
from assay.training.trainer.context import RankContext, StepForm
from assay.training.trainer.optimizer import apply_update, average_and_clip, build_optimizer
from assay.training.trainer.step import Stepper
from assay.workflows.replay import replay
from assay.workflows.run import create_run
from integration.test_soak import kill_and_resize
from method_runs import LORA, digest, method_recipe
from one_rank import one_rank_run, train_one_rank
from shape_ranks import rank_shapes
from shaped_networks import VOCAB_SIZE, shaped

METHODS = ("sft", "reward", "dpo", "grpo")
KILLS = FaultPlan.model_validate(
    {"faults": [{"type": "kill", "attempt": attempt, "step": step} for attempt, step in ((1, 3), (2, 7))]}
)


@pytest.fixture(autouse=True)
def cuda(requires: Callable[..., None]) -> None:
    requires("cuda", torch.cuda.is_available(), "torch sees no GPU")


def often_checked(method: str, folder: Path) -> dict[str, Any]:
    """Every other step is checked and committed."""
    tree = method_recipe(method, folder)
    tree["trainer"] |= {"commit_every": 2, "spot_check_every": 2, "evaluate_every": 6}
    return tree


@pytest.mark.parametrize("method", METHODS)
def test_a_run_that_is_killed_twice_ends_with_the_undisturbed_weights(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))
    tree = often_checked(method, tmp_path)
    undisturbed = digest(tree, "undisturbed", RestartPolicy())
    run = create_run(Home.from_environment(), LoadedConfig(tree, {}), run_id="killed")
    kill_and_resize(run, (1, 1, 1), ("ddp",) * 3, KILLS)
    log = CommitLog(open_store(run.store_url))
    finished = log.finished()
    assert finished is not None and finished.weights_digest == undisturbed
    assert audit_run(run, log).verdict == "pass"
    last = saved_attempts(Path(run.run_dir))[-1]
    assert last.devices == ("cuda:0",) and last.serials[0].startswith("GPU-")
    assert last.processor is not None and not last.processor.instructions, "what sums like it is the same GPU"


@pytest.mark.parametrize("method", METHODS)
def test_steps_are_spot_checked_and_replayed_bit_for_bit_in_bfloat16(method: str, tmp_path: Path) -> None:
    tree = often_checked(method, tmp_path)
    trained = train_one_rank(tree, tmp_path / "run")
    assert sum("spot_check_digest" in step for step in trained.steps) == 6
    assert replayed(one_rank_run(tree, tmp_path / "run"), step=5).verdict == "equal"
    exact = {**tree, "trainer": {**tree["trainer"], "precision": "float32"}}
    in_float32 = train_one_rank(exact, tmp_path / "float32").steps
    norms = [steps[0]["gradient_norm"] for steps in (trained.steps, in_float32)]
    assert norms[0] != norms[1] and norms[0] == pytest.approx(norms[1], rel=0.1), "bfloat16 is the default"
    assert trained.steps[0]["loss"] == pytest.approx(in_float32[0]["loss"], rel=0.05, abs=0.02)


def plain_form(context: RankContext, *, times_lanes: bool) -> StepForm:
    return StepForm(is_flat=context.config.weights.compute == "bfloat16", capture=None, defers=False)


@pytest.mark.parametrize("compute", ["float32", "bfloat16"])
@pytest.mark.parametrize("method", METHODS)
def test_captured_and_deferred_steps_have_the_bits_of_plain_ones(
    method: str, compute: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = on_lines(often_checked(method, tmp_path), compute)
    captured = train_one_rank(tree, tmp_path / "captured")
    monkeypatch.setattr(context_module, "step_form", plain_form)
    plain = train_one_rank(tree, tmp_path / "plain")
    for ahead, step in zip(captured.steps, plain.steps, strict=True):
        assert {name: ahead[name] for name in EXACT if name in ahead} == {
            name: step[name] for name in EXACT if name in step
        }
    assert all(torch.equal(captured.weights[name], plain.weights[name]) for name in plain.weights)
    assert replayed(one_rank_run(tree, tmp_path / "captured"), step=5).verdict == "equal"


EXACT = ("loss", "gradient_norm", "gradient_digest", "spot_check_lane", "spot_check_digest")


def on_lines(tree: dict[str, Any], compute: str = "float32") -> dict[str, Any]:
    tree["loader"]["layout"] = {"type": "line", "tokens": 512}
    tree["trainer"] |= {} if compute == "float32" else {"weights": {"compute": compute}}
    return tree


@pytest.mark.parametrize("method", ["sft", "dpo", "reward"])
def test_a_step_over_lines_is_captured_and_makes_the_host_wait_for_nothing(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    start, watched = Stepper.start, list[int]()

    def watching(stepper: Stepper, share: Any, *, step: int, **requests: Any) -> Any:
        # The first steps allocate and capture; a checked one waits for its digests.
        is_watched = step > 4 and step % 2 == 1
        torch.cuda.set_sync_debug_mode("error" if is_watched else "default")
        try:
            started = start(stepper, share, step=step, **requests)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        watched.extend([step] * (is_watched and started.is_running))
        return started

    monkeypatch.setattr(Stepper, "start", watching)
    train_one_rank(on_lines(often_checked(method, tmp_path)), tmp_path / "run")
    assert watched, "no step was watched"
    assert "not captured" not in capfd.readouterr().err


@pytest.mark.parametrize("method", ["sft", "grpo"])
def test_a_run_that_computes_in_bfloat16_is_killed_and_ends_with_the_undisturbed_weights(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))
    tree = on_lines(often_checked(method, tmp_path), "bfloat16")
    undisturbed = digest(tree, "undisturbed", RestartPolicy())
    run = create_run(Home.from_environment(), LoadedConfig(tree, {}), run_id="killed")
    kill_and_resize(run, (1, 1, 1), ("ddp",) * 3, KILLS)
    finished = CommitLog(open_store(run.store_url)).finished()
    assert finished is not None and finished.weights_digest == undisturbed


def test_an_update_that_is_not_finite_changes_nothing_on_the_device() -> None:
    model = torch.nn.Linear(3, 2, device="cuda")
    optimizer = build_optimizer(model, OptimizerConfig())
    states = []
    for number in (0.5, torch.nan):
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, number)
        norm = average_and_clip([p.grad for p in model.parameters() if p.grad is not None], weight=1, max_norm=1.0)
        apply_update(optimizer, 0.1, norm.isfinite())
        states.append([t.clone() for s in optimizer.state.values() for t in (*s.values(), *model.parameters())])
    assert all(map(torch.equal, *states))


def replayed(run: Run, *, step: int, **options: Any) -> ReplayReport:
    return replay(run, CommitLog(open_store(run.store_url)), ReplayRequest(step=step, **options))


@pytest.mark.parametrize("method", ["sft", "dpo"])
def test_the_operators_of_a_step_are_within_their_bounds(method: str, tmp_path: Path) -> None:
    tree = often_checked(method, tmp_path)
    train_one_rank(tree, tmp_path / "run")
    report = replayed(one_rank_run(tree, tmp_path / "run"), step=4, mode="watch")
    assert report.operators is not None and report.operators.finding is None, report.operators


def test_first_steps_in_float32_are_those_of_a_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = often_checked("sft", tmp_path)
    tree["trainer"] |= {"precision": "float32"}
    on_gpu = train_one_rank(tree, tmp_path / "gpu").steps
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    torch.use_deterministic_algorithms(False)
    on_cpu = train_one_rank(tree, tmp_path / "cpu").steps
    for gpu, cpu in zip(on_gpu, on_cpu, strict=True):
        assert gpu["loss"] == pytest.approx(cpu["loss"], rel=1e-4)
        assert gpu["gradient_norm"] == pytest.approx(cpu["gradient_norm"], rel=1e-3)


@pytest.mark.parametrize("what", ["adapters", "compiled layers"])
def test_adapters_and_compiled_layers_come_to_the_same_bits_again(what: str, tmp_path: Path) -> None:
    tree = method_recipe("reward", tmp_path, **({"lora": LORA} if what == "adapters" else {}))
    tree["trainer"] |= {"compile": what == "compiled layers", "max_steps": 4}
    first, again = (train_one_rank(tree, tmp_path / name) for name in ("first", "again"))
    assert [step["loss"] for step in first.steps] == [step["loss"] for step in again.steps]
    assert first.weights.keys() == again.weights.keys()
    assert all(torch.equal(first.weights[name], again.weights[name]) for name in first.weights)


def talker() -> Any:
    """A language model with weights drawn wide, on the GPU."""
    device_of()
    return copy.deepcopy(shaped("qwen3")).cuda()


def completed(network: Any, requested: list[Prompt], **options: Any) -> list[int]:
    """Digests of rollouts in bfloat16, with deterministic kernels."""
    params = SamplingParams(temperature=1.0, max_tokens=48)
    with torch.autocast("cuda", torch.bfloat16):
        rollouts = Generator(network, ends={5}, **options).generate(requested, params)
    return [rollout.digest for rollout in rollouts]


def questions() -> list[Prompt]:
    words = np.arange(100) % VOCAB_SIZE
    return [Prompt(words[:length], 100 * length + sample) for length in (1, 7, 64, 65, 90) for sample in range(20)]


def test_rollouts_of_captured_steps_are_those_of_plain_ones_and_of_each_prompt_alone() -> None:
    network, requested = talker(), questions()
    captured = completed(network, requested)
    assert captured == completed(network, requested), "twice the same"
    assert captured == completed(network, requested, mode=ON_GPU._replace(is_captured=False))
    assert captured == completed(network, requested, mode=ON_GPU._replace(steps_per_look=1, looks_lag=False))
    assert captured[::-1] == completed(network, requested[::-1])
    assert [captured[70]] == completed(network, requested[70:71])


def test_the_paged_kernels_rollouts_are_those_of_transformers_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    network, requested = talker(), questions()
    params = SamplingParams(temperature=1.0, max_tokens=24)
    ours = Generator(network, ends={5}).generate(requested, params)
    monkeypatch.setattr(Generator, "_kernel", lambda self, positions: None)
    gathered = Generator(network, ends={5}).generate(requested, params)
    for one, other in zip(ours, gathered, strict=True):
        length = min(len(one.tokens), len(other.tokens))
        differs = np.flatnonzero(one.tokens[:length] != other.tokens[:length])
        equal = differs[0] if len(differs) else length
        np.testing.assert_allclose(one.logprobs[:equal], other.logprobs[:equal], atol=1e-3)


def test_the_host_waits_for_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    network, requested, step = talker(), questions(), Generator._step

    def checked(self: Generator, *inputs: Any) -> Any:
        torch.cuda.set_sync_debug_mode("error")
        try:
            return step(self, *inputs)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    monkeypatch.setattr(Generator, "_step", checked)
    assert completed(network, requested, mode=ON_GPU._replace(is_captured=False))


def test_weights_that_were_trained_between_generations_are_those_of_the_next() -> None:
    network, requested = talker(), questions()
    generator, params = Generator(network, ends={5}), SamplingParams(temperature=1.0, max_tokens=24)
    with torch.autocast("cuda", torch.bfloat16), torch.no_grad():
        first = [rollout.digest for rollout in generator.generate(requested, params)]
        for parameter in network.parameters():
            parameter.mul_(-0.5)
        second = [rollout.digest for rollout in generator.generate(requested, params)]
        new = [rollout.digest for rollout in Generator(network, ends={5}).generate(requested, params)]
    assert second == new and second != first
    assert all(parameter.dtype == torch.float32 for parameter in network.parameters())


def test_a_tile_for_which_memory_is_short_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("assay.inference.local.generator._free_bytes", lambda device: 1 << 10)
    with pytest.raises(ConfigError, match="GB are free"):
        completed(talker(), questions())


def test_more_workers_than_gpus_are_refused(tmp_path: Path) -> None:
    recipe, count = tmp_path / "recipe.yaml", torch.cuda.device_count() + 1
    recipe.write_text(yaml.safe_dump(method_recipe("sft", tmp_path)))
    environment = {"ASSAY_HOME": str(tmp_path / "home")}
    found = CliRunner().invoke(cli, ["train", str(recipe), "--workers", str(count)], env=environment)
    assert "has room for" in str(found.exception) and "CUDA_VISIBLE_DEVICES=" in str(found.exception)
    assert not (tmp_path / "home" / "runs").exists()


def test_predicted_shapes_have_the_order_of_measured_ones() -> None:
    predicted, measured = rank_shapes(10.0).orders
    assert predicted == measured
