"""Answers of another engine: a real one of plain transformers, which is told to misbehave in every way."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaForCausalLM

from agreement.tiny_models import save_tiny
from assay.base.config import LoadedConfig
from assay.base.errors import ConfigError, DataError
from assay.inference.protocol import SamplingParams
from assay.inference.remote import EngineAwayError, EngineError, LogprobGap, RemoteEngine
from assay.inference.rollout import GenerationCancelledError
from assay.models.exporting import ExportOptions
from assay.store.home import Home
from assay.store.metrics.recorded import recorded_steps
from assay.store.objects import ObjectStore, open_store
from assay.training.checkpoint.reward_cache import RewardCache, load_groups
from assay.training.checkpoint.saver import weights_digest
from assay.training.methods.grpo import remote
from assay.training.methods.grpo.config import GrpoConfig
from assay.training.methods.grpo.loss import importance_weights
from assay.training.methods.grpo.method import GrpoMethod
from assay.training.methods.grpo.remote import RemoteRollouts, check_engine
from assay.training.rollouts.source import RolloutContext
from assay.training.samples import LaneSamples
from assay.workflows.run import plan_run
from completions_server import CompletionsServer, serving
from one_rank import one_rank_run, train_here
from prompt_rows import grpo_config, grpo_recipe, prompt_dataset, prompt_lane
from variants import slow


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(LlamaForCausalLM, tmp_path_factory.mktemp("base") / "model", seed=3)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prompt_dataset(tmp_path_factory.mktemp("prompts"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CompletionsServer]:
    with serving(save_tiny(LlamaForCausalLM, tmp_path_factory.mktemp("other") / "model", seed=4)) as server:
        yield server


@pytest.fixture
def engine(server: CompletionsServer) -> CompletionsServer:
    """With weights of its own."""
    server.faults, server.failures, server.version = set(), 0, "default"
    server.reload(server.started_from)
    return server


def sampler(engine: CompletionsServer, tmp_path: Path, **keys: Any) -> dict[str, Any]:
    folder = tmp_path / "handover"
    folder.mkdir(exist_ok=True)
    return {
        "type": "remote", "url": engine.url, "model": engine.model, "folder": str(folder), "max_retries": 1,
        "timeout_s": 20.0, **keys,
    }  # fmt: skip


@pytest.fixture
def config(base: Path, engine: CompletionsServer, tmp_path: Path) -> GrpoConfig:
    return grpo_config(base, sampler=sampler(engine, tmp_path))


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return open_store(str(tmp_path / "store"))


def rolled_out(config: GrpoConfig, store: ObjectStore, *, rows: list[int], **reward_cache: Any) -> LaneSamples:
    method = GrpoMethod(config)
    with torch.no_grad():
        context = RolloutContext(3, 7, RewardCache(store, **{"attempt": 1, **reward_cache}))
        [result] = method.rollouts(method.build_model(), [prompt_lane(0, rows)], {}, context, max_tokens=None)
    return result


def gap_of(config: GrpoConfig, result: LaneSamples) -> float:
    """Nats per token."""
    method = GrpoMethod(config)
    model = method.build_model()
    sums = [
        method.loss(model, method.tensors(batch, torch.device("cpu")), {}).metrics["logprob_gap"]
        for batch in result.lane.micro_batches
    ]
    return sum(float(sum_.sum) for sum_ in sums) / sum(float(sum_.weight) for sum_ in sums)


def test_answers_are_of_the_weights_that_were_handed_over(
    config: GrpoConfig, store: ObjectStore, engine: CompletionsServer
) -> None:
    assert gap_of(config, rolled_out(config, store, rows=[1, 2])) < 2e-6
    [folder] = Path(config.sampler.folder).iterdir()
    assert folder.name == engine.named and (folder / "tokenizer.json").is_file()


def test_what_was_answered_is_taken_again_by_whoever_makes_the_step(
    config: GrpoConfig, store: ObjectStore, engine: CompletionsServer
) -> None:
    first, requested = rolled_out(config, store, rows=[1, 2]), engine.num_requests
    again = rolled_out(config, store, rows=[2, 1], attempt=2)
    replayed = rolled_out(config, store, rows=[1, 2], attempt=0, is_read_only=True)
    assert (engine.num_requests, replayed.digest) == (requested, first.digest)
    assert replayed.lane.micro_batches[0].columns == first.lane.micro_batches[0].columns
    assert again.lane.num_rows == first.lane.num_rows
    assert rolled_out(config, store, rows=[1, 3], attempt=2) is not None and engine.num_requests == requested + 1
    with pytest.raises(DataError, match=r"step 3, row 4: the completions of .* are not stored"):
        rolled_out(config, store, rows=[4], is_read_only=True)


def test_what_was_answered_with_other_weights_is_asked_for_anew(
    config: GrpoConfig, store: ObjectStore, engine: CompletionsServer, tmp_path: Path
) -> None:
    rolled_out(config, store, rows=[1])
    other = save_tiny(LlamaForCausalLM, tmp_path / "other", seed=9)
    requested = engine.num_requests
    changed = config.model_copy(update={"model": config.model.model_copy(update={"path": str(other)})})
    rolled_out(changed, store, rows=[1], attempt=2)
    assert engine.num_requests == requested + 1
    assert load_groups(store, 3, [1])[1].policy == engine.named


def test_an_engine_with_stale_weights_is_named_and_only_by_the_digest(
    config: GrpoConfig, store: ObjectStore, engine: CompletionsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.faults = {"stale"}
    with pytest.raises(EngineError, match=r"it has other weights: expected digest .* reports"):
        rolled_out(config, store, rows=[1])
    assert not load_groups(store, 3, [1])
    monkeypatch.setattr(RemoteEngine, "check_weights", lambda *_: None)
    assert rolled_out(config, store, rows=[1]).lane.num_rows


@pytest.fixture
def tied(engine: CompletionsServer, tmp_path: Path) -> list[GrpoConfig]:
    """Two policies that tie their output matrix; the engine was started with the first, and has vLLM's fault."""
    folders = [save_tiny(LlamaForCausalLM, tmp_path / f"tied-{seed}", seed=seed, tied=True) for seed in (5, 6)]
    engine.faults = {"tied"}
    engine.started_from = str(folders[0])
    engine._load(str(folders[0]))
    return [grpo_config(folder, sampler=sampler(engine, tmp_path)) for folder in folders]


def save_as_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "ExportOptions", lambda writes_head: ExportOptions())


def test_a_tied_output_matrix_is_renewed_with_each_handover(
    tied: list[GrpoConfig], store: ObjectStore, engine: CompletionsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    gaps = [gap_of(config, rolled_out(config, store, rows=[1, 2], attempt=n)) for n, config in enumerate(tied, 1)]
    assert max(gaps) < 2e-6
    save_as_transformers(monkeypatch)
    assert gap_of(tied[0], rolled_out(tied[0], store, rows=[1, 2], attempt=3)) > 0.1, "the fake has no fault"


def test_an_engine_that_keeps_a_part_of_the_weights_is_refused_before_the_run_and_after_a_restart(
    tied: list[GrpoConfig], store: ObjectStore, engine: CompletionsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    [config, _] = tied
    message = r"does not follow the weights .* With changed weights, .* nats apart"
    with monkeypatch.context() as old:
        save_as_transformers(old)
        with pytest.raises(ConfigError, match=message):
            check_engine(config.sampler, config.model, config.sampling, 12)
        with pytest.raises(EngineError, match=message):
            rolled_out(config, store, rows=[1])
        assert not load_groups(store, 3, [1])
        engine.version = "default"
        with pytest.raises(EngineError, match=message):
            rolled_out(config, store, rows=[1])
    check_engine(config.sampler, config.model, config.sampling, 12)
    assert engine.version == weights_digest(GrpoMethod(config).build_model().state_dict())


@pytest.mark.parametrize("part", ["model.embed_tokens", "model.layers", "model.norm", "lm_head"])
def test_a_probe_notices_any_part_that_is_kept(
    part: str, config: GrpoConfig, engine: CompletionsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reload_the_rest(folder: str) -> None:
        weights_of_part = engine._network.get_submodule(part).state_dict()
        engine._load(folder)
        engine._network.get_submodule(part).load_state_dict(weights_of_part)

    monkeypatch.setattr(engine, "reload", reload_the_rest)
    with pytest.raises(ConfigError, match="does not follow the weights"):
        check_engine(config.sampler, config.model, config.sampling, 12)


@pytest.mark.parametrize("first, later, refused", [(2e-7, 9e-6, 1.1e-5), (1e-3, 0.019, 0.021), (0.0049, 0.049, 0.099)])
def test_a_gap_is_held_against_that_of_the_runs_first_step_in_every_attempt(
    first: float, later: float, refused: float, config: GrpoConfig, store: ObjectStore, engine: CompletionsServer
) -> None:
    bounded = config.sampler.model_copy(update={"logprob_gap": LogprobGap(bound=0.2)})

    def check(gap: float, step: int, attempt: int, **of_cache: Any) -> None:
        rollouts = RemoteRollouts(bounded, config.model, config.sampling, group_size=4, ends=())
        rollouts._last = (RewardCache(store, attempt=attempt, **of_cache), step)
        rollouts.check_logprob_gap(gap, step=step)

    check(refused, 1, 1, is_read_only=True)
    check(0.0, 1, 1)
    check(first, 2, 1)
    check(later, 3, 1)
    engine.version = "default"
    with pytest.raises(EngineError, match=r"step 4: .* times as much as in step 2 .* assay train --resume; or if its"):
        check(refused, 4, 2)
    assert engine.named == "loading"
    with pytest.raises(EngineError, match="times as much"):
        check(refused, 4, 0, is_read_only=True)
    with pytest.raises(EngineError, match=r"more than method.sampler.logprob_gap.bound=0.2"):
        check(0.3, 4, 2)


def test_answers_behind_which_the_weights_change_are_not_kept(
    config: GrpoConfig, store: ObjectStore, engine: CompletionsServer
) -> None:
    engine.faults = {"changing"}
    with pytest.raises(EngineError, match="after its completions it reports another"):
        rolled_out(config, store, rows=[1])
    assert not load_groups(store, 3, [1])


def test_a_question_is_asked_again_where_the_answer_may_pass(
    config: GrpoConfig, store: ObjectStore, engine: CompletionsServer
) -> None:
    rolled_out(config, store, rows=[1])
    engine.failures = 1
    assert rolled_out(config, store, rows=[2]).lane.num_rows
    engine.failures = 2
    with pytest.raises(EngineAwayError, match=r"does not respond: .* answered 500: .*run the same command again"):
        rolled_out(config, store, rows=[3])


def test_who_is_asked_to_stop_waits_for_no_answer_and_gives_signs_of_life_while_it_waits(
    config: GrpoConfig, store: ObjectStore, engine: CompletionsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    phases, method = list[str](), GrpoMethod(config)
    monkeypatch.setattr(remote, "HEARTBEAT_S", 0.0)
    with engine.lock, pytest.raises(GenerationCancelledError):  # it answers nobody
        cache = RewardCache(store, attempt=1)
        context = RolloutContext(3, 7, cache, is_stopping=lambda: len(phases) > 3, enter_phase=phases.append)
        method.rollouts(method.build_model(), [prompt_lane(0, [1, 2])], {}, context, max_tokens=None)
    assert set(phases) == {"generation"}
    for thread in threading.enumerate():
        if thread.name.startswith("engine"):
            thread.join()
    assert not load_groups(store, 3, [1, 2])


def run_with(tree: dict[str, Any], folder: Path) -> list[dict[str, float]]:
    train_here(one_rank_run(tree, folder))
    return [item.values for _, item in sorted(recorded_steps(folder).items())]


def recipe(dataset: Path, base: Path, engine: CompletionsServer, tmp_path: Path, **gap: Any) -> dict[str, Any]:
    """Two steps of a real run of one rank."""
    tree = grpo_recipe(dataset, base, trainer={"max_steps": 2, "commit_every": 2, "spot_check_every": 2})
    return tree | {"method": tree["method"] | {"sampler": sampler(engine, tmp_path, logprob_gap=gap)}}


@pytest.mark.slow
@pytest.mark.parametrize("way", ["lying", *slow("hot")])
def test_an_engine_that_draws_otherwise_is_named_by_the_gap_and_by_nothing_else(
    way: str, dataset: Path, base: Path, engine: CompletionsServer, tmp_path: Path
) -> None:
    tree = recipe(dataset, base, engine, tmp_path, bound=0.05)
    honest = run_with(tree, tmp_path / "honest")
    assert all(step["logprob_gap"] < 2e-6 for step in honest)
    engine.reload(engine.started_from)
    engine.faults = {way}
    with pytest.raises(EngineError, match=r"step 1: .* nats apart per token, more than .*bound=0.05"):
        run_with(tree, tmp_path / "refused")
    assert not list(open_store(str(tmp_path / "refused")).list("made/"))
    with pytest.raises(EngineError, match="does not follow the weights"):
        run_with(recipe(dataset, base, engine, tmp_path, bound=100.0), tmp_path / "refused-again")


def test_a_run_whose_engine_stops_following_ends_without_that_update(
    dataset: Path, base: Path, engine: CompletionsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = RemoteEngine.load

    def load_once(self: RemoteEngine, digest: str, folder: Path) -> None:
        load(self, digest, folder)
        engine.version, engine.faults = digest, {"lying"}

    monkeypatch.setattr(RemoteEngine, "load", load_once)
    tree = recipe(dataset, base, engine, tmp_path, bound=0.5)
    with pytest.raises(EngineError, match=r"step 2: .* times as much as in step 1 \(.*e-0[78]\).* No update was made"):
        run_with(tree, tmp_path / "run")
    assert list(recorded_steps(tmp_path / "run")) == [1]


def test_a_step_that_is_corrected_weighs_tokens_that_are_apart(
    dataset: Path, base: Path, engine: CompletionsServer, tmp_path: Path
) -> None:
    engine.faults = {"hot"}
    steps = run_with(recipe(dataset, base, engine, tmp_path, on_excess="truncate"), tmp_path / "run")
    assert len(steps) == 2 and all(step["weighed"] > 0.5 for step in steps)


def test_a_weight_is_the_ratio_of_both_cut_at_the_largest_and_one_within_the_bound() -> None:
    config = LogprobGap(bound=0.1, on_excess="truncate", max_weight=3.0)
    gaps = torch.tensor([[0.0, 0.1, -0.05, 0.5, -2.0, 1.2]])
    expected = torch.tensor([[1.0, 1.0, 1.0, 0.5, -2.0, 3.0]])
    expected[0, 3:5] = expected[0, 3:5].exp()
    assert torch.allclose(importance_weights(gaps, config), expected)


REFUSED = {
    "text_only": "its response has no tokens with logprobs",
    "unnamed": "it does not report its weights",
    "stale": "it has other weights",
    "lying": "does not follow the weights",
    "hot": "does not follow the weights",
}


@pytest.mark.parametrize("way", REFUSED)
def test_an_engine_that_could_not_be_learned_from_is_refused_before_there_is_a_run(
    way: str,
    dataset: Path,
    base: Path,
    engine: CompletionsServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))
    home = Home.from_environment()
    engine.faults = {way}
    tree = LoadedConfig(recipe(dataset, base, engine, tmp_path), {})
    options: dict[str, Any] = {"world_size": 1, "run_id": "refused", "store_url": None}
    with pytest.raises(ConfigError, match=REFUSED[way]):
        plan_run(home, tree, **options)
    engine.faults = set()
    assert plan_run(home, tree, **options).run_id == "refused"


def test_an_engine_that_is_away_serves_another_model_or_has_no_room_is_refused(
    config: GrpoConfig, engine: CompletionsServer
) -> None:
    def refused(longest: int = 12, **keys: Any) -> None:
        sampling = SamplingParams(**config.sampling.model_dump())
        check_engine(config.sampler.model_copy(update=keys), config.model, sampling, longest)

    refused()
    with pytest.raises(EngineAwayError, match="does not respond"):
        refused(url="http://127.0.0.1:9/v1", max_retries=0)
    with pytest.raises(ConfigError, match=r"method.sampler.model=other: .* serves policy"):
        refused(model="other")
    with pytest.raises(ConfigError, match=r"it takes 64 tokens, but the longest prompt .* has 65"):
        refused(longest=65)
    with pytest.raises(ConfigError, match="no such folder"):
        refused(folder="/not/there")


@pytest.mark.parametrize(
    "keys, message",
    [
        ({"sampling": {"top_p": 0.9}}, "sampled from the whole distribution"),
        ({"sampler": {"url": "engine:8000", "model": "m", "folder": "/f"}}, "url: 'engine:8000' is none"),
        ({"sampler": {"url": "http://e/v1", "model": "m", "folder": "f"}}, "is not absolute"),
        (
            {
                "loss": {"type": "gspo"},
                "sampler": {
                    "url": "http://e/v1", "model": "m", "folder": "/f",
                    "logprob_gap": {"on_excess": "truncate"},
                },
            },
            "gspo has one ratio",
        ),
    ],
)  # fmt: skip
def test_a_recipe_that_cannot_mean_anything_is_refused(base: Path, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        grpo_config(base, **keys)
