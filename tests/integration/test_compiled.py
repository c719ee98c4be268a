"""Layers that run as programs, with real processes: killed, resized, sharded; and replayed."""

from pathlib import Path
from typing import Any

import pytest

from assay.base.config import LoadedConfig
from assay.base.errors import ConfigError
from assay.elastic.faults import FaultPlan
from assay.elastic.supervisor import RestartPolicy
from assay.records.run import Run
from assay.store.commit_log import CommitLog
from assay.store.home import Home
from assay.store.objects import open_store
from assay.training.replay.request import ReplayRequest
from assay.workflows.replay import replay
from assay.workflows.run import create_run, load_run
from language_rows import small_model
from method_runs import digest, eventful, method_recipe
from one_rank import train_one_rank
from variants import soaked


def compiled(method: str, folder: Path, **model: Any) -> dict[str, Any]:
    tree = method_recipe(method, folder, **model)
    tree["trainer"] |= {"compile": True, "spot_check_every": 4}
    return tree


def recorded(name: str) -> tuple[Run, CommitLog]:
    run = load_run(Home.from_environment(), name)
    return run, CommitLog(open_store(run.store_url))


TWO_THEN_ONE = RestartPolicy(
    world_sizes=(2, 1),
    parallel=("fsdp2", "ddp"),
    faults=FaultPlan.model_validate({"faults": [{"type": "kill", "step": 8}]}),
)
"""Each rank of each attempt compiles the layers again, so few ranks make the quicker test."""


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("policy", [TWO_THEN_ONE, *soaked(eventful())], ids=["2 ranks, 1 rank", "4, 2, 2 and 1 ranks"])
def test_killed_and_resized_it_ends_with_the_same_weights_and_replays(
    policy: RestartPolicy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))
    tree = compiled("sft", tmp_path)
    undisturbed = digest(tree, "undisturbed", RestartPolicy())
    assert digest(tree, "eventful", policy) == undisturbed
    run, log = recorded("eventful")
    found = replay(run, log, ReplayRequest(step=4, through_step=5))
    assert found.verdict == "equal" and "gradient_digest" in {comparison.quantity for comparison in found.at_step}
    watched = replay(run, log, ReplayRequest(step=6, mode="watch"))
    assert watched.operators is not None and watched.operators.as_written and watched.operators.finding is None
    assert watched.first_difference is None and not watched.at_step
    tree["trainer"]["compile"] = False
    assert digest(tree, "as written", RestartPolicy()) != undisturbed
    # The replays left no program behind in this process, which layers that are computed twice would be given.
    tree["method"]["model"]["checkpoint_activations"] = True
    twice = train_one_rank(tree, tmp_path / "twice")
    tree["method"]["model"]["checkpoint_activations"] = False
    retained = train_one_rank(tree, tmp_path / "kept")
    assert [step["gradient_norm"] for step in twice.steps] == [step["gradient_norm"] for step in retained.steps]


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("method", ["reward", "dpo", "dpo, lines"])
def test_each_method_ends_with_the_same_weights_on_two_ranks_and_on_one(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))
    tree = compiled(method.partition(",")[0], tmp_path, checkpoint_activations=method == "dpo")
    if method == "dpo, lines":
        tree["loader"] |= {"layout": {"type": "line", "tokens": 96}, "max_micro_batch_tokens": None}
    alone = digest(tree, "alone", RestartPolicy())
    kill = FaultPlan.model_validate({"faults": [{"type": "kill", "step": 5}]})
    policy = RestartPolicy(world_sizes=(2, 2), parallel=("fsdp2", "ddp"), faults=kill)
    assert digest(tree, "killed", policy) == alone
    assert replay(*recorded("killed"), ReplayRequest(step=4, through_step=5)).verdict == "equal"


@pytest.mark.parametrize(
    ("compiler", "header", "message"),
    [
        ("no-such-compiler", None, "'no-such-compiler' is not installed"),
        ("sh", "/nowhere", "/nowhere/Python.h"),
    ],
)
def test_without_a_compiler_it_is_refused_before_anything_is_made(
    compiler: str, header: str | None, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", compiler)
    if header is not None:
        monkeypatch.setattr("sysconfig.get_path", lambda name: header)
    with pytest.raises(ConfigError, match=message):
        create_run(Home.at(tmp_path / "home"), LoadedConfig(compiled("sft", tmp_path), {}), run_id="refused")
    assert not list((tmp_path / "home").glob("runs/*"))


@pytest.mark.parametrize(
    ("method", "more"),
    [
        ("grpo", {}),
        ("sft", {"loader": {"layout": {"type": "packed", "sequence_tokens": 32}}}),
        ("sft", {"method": {"model": small_model(lora={"rank": 2})}}),
    ],
)
def test_what_is_not_known_to_be_exact_is_refused(method: str, more: dict[str, Any], tmp_path: Path) -> None:
    tree = compiled(method, tmp_path)
    tree |= {name: {**tree[name], **section} for name, section in more.items()}
    with pytest.raises(ConfigError, match="only known to be exact for sft, reward and dpo"):
        create_run(Home.at(tmp_path / "home"), LoadedConfig(tree, {}), run_id="refused")
