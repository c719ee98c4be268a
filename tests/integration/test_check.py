"""What `assay train --check` says of a run beforehand is what the run then does."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from agreement.tiny_models import tiny_tokenizer
from assay.base.config import LoadedConfig
from assay.models.causal import build_causal
from assay.models.causal_config import NewCausalConfig
from assay.store.home import Home
from assay.store.metrics.segment import read_segment, segment_path
from assay.training.recipe import Recipe
from assay.workflows.calibration import calibrate
from assay.workflows.preview import check_gathered_weights_fit, machine_bytes, preview
from assay.workflows.run import check_recipe
from in_process import assay as run
from preference_rows import preference_recipe, write_pairs
from prompt_rows import grpo_recipe, prompt_dataset

STATED_FACTOR = 2.0
"""Within which the formula for memory is, where the model is large beside Python and its libraries."""


def test_a_check_without_measuring_says_what_follows_from_recipe_and_data(recipe: Path, capfd) -> None:
    checks = ("--check", "--measure", "0", "--workers", "2")
    assert run("train", recipe, "trainer.max_steps=500", "trainer.evaluate_every=8", *checks) == 0
    output = capfd.readouterr().out
    for part in (
        "steps        20: 1 epoch of 20 steps",
        "commits      every 5 steps, and at every evaluation, and at the end: 6",
        "evaluations  every 8 steps and at the end: 3",
        "a rank, float32, plus Python and its libraries: parameters",
        "note: trainer.max_steps=500 is never reached: trainer.epochs=1 has 20 steps",
    ):
        assert part in output, output
    assert "time  " not in output
    lines = output.splitlines()
    assert lines[0].startswith("steps ") and len(lines) < 12, "the answer, and nothing but it"
    assert run("train", recipe, "trainer.max_steps=500", *checks, "--verbose") == 0
    whole = capfd.readouterr().out
    assert whole.startswith("# steps ") and "# order of the rows" in whole
    assert yaml.safe_load(whole)["trainer"]["max_steps"] == 500
    assert run("train", recipe, "trainer.max_steps=500", *checks, "--json") == 0
    events = json.loads(capfd.readouterr().out)
    assert (events["num_steps"], events["world_size"], events["recipe"]["trainer"]["max_steps"]) == (20, 2, 500)
    assert events["measured"] is None and "position_correlation" in events["order"] and len(events["warnings"]) == 1
    for rate, is_noted in (("0.1", True), ("0.09", False)):
        assert run("train", recipe, f"trainer.optimizer.learning_rate={rate}", *checks) == 0
        assert ("AdamW moves a weight by about as much in a step" in capfd.readouterr().out) is is_noted
    assert not (recipe.parent / "home").exists()


def test_more_workers_that_gain_nothing_are_noted_with_the_number_that_would(recipe: Path, capfd) -> None:
    for workers, is_noted in ((7, True), (4, False)):
        assert run("train", recipe, "--check", "--measure", "0", "--workers", workers) == 0
        output = capfd.readouterr().out
        noted = "--workers 7 is no faster than 4: of loader.lanes=8 the busiest has 2 lanes either way. 8 would be"
        assert (noted in output) is is_noted, output


@pytest.mark.slow
def test_a_measured_check_leaves_nothing_and_its_run_makes_the_steps_and_commits_that_it_said(
    recipe: Path, capfd
) -> None:
    before = sorted(recipe.parent.rglob("*"))
    assert run("train", recipe, "trainer.epochs=8", "--check", "--measure", "0.5") == 0
    output = capfd.readouterr().out
    assert sorted(recipe.parent.rglob("*")) == before
    assert re.search(r"time +\d.* on 1 worker: \d.* of device time, without failures", output), output
    assert re.search(r"measured here over \d+ real steps: \d.* tokens/s; \d.* to the first step; a commit \d", output)
    steps = re.search(r"steps +(\d+):", output)
    commits = re.search(r"commits +every 5 steps, and at the end: (\d+)", output)
    parameters = re.search(r"parameters +([\d,]+)", output)
    assert steps and commits and parameters
    assert run("train", recipe, "trainer.epochs=8", "--run-id", "done", "--json") == 0
    with Home.from_environment().open_ledger() as ledger:
        entries = ledger.log_entries("done")
    created = [entry for entry in entries if entry.type == "commit"]
    assert (created[-1].step, len(created)) == (int(steps[1]), int(commits[1]))


@pytest.mark.slow
@pytest.mark.parametrize(
    "encoder",
    [
        pytest.param(  # parameters decide
            {"hidden_size": 512, "num_layers": 8, "intermediate_size": 2048, "num_heads": 8},
            id="deep",
            marks=pytest.mark.soak,
        ),
        pytest.param(  # activations do
            {"hidden_size": 256, "num_layers": 3, "intermediate_size": 1024, "num_heads": 4}, id="wide batch"
        ),
    ],
)
def test_the_memory_that_a_rank_takes_is_as_the_formula_says(tiny_recipe_tree, encoder, request) -> None:
    batch = 32 if "deep" in request.node.name else 128
    tree = {
        **tiny_recipe_tree,
        "loader": {**tiny_recipe_tree["loader"], "lanes": 2, "global_batch_size": batch, "window_rows": 16},
        "method": {**tiny_recipe_tree["method"]},
        "trainer": {"commit_every": 1, "epochs": 6},
    }
    small = calibrate(LoadedConfig(tree, {}), world_size=1, seconds=0.1)
    tree["method"] = {**tree["method"], "encoder": {**tree["method"]["encoder"], **encoder}}
    recipe, dataset = check_recipe(LoadedConfig(tree, {}))
    assert isinstance(recipe, Recipe)
    memory = preview(recipe, dataset, world_size=1).memory
    assert memory is not None
    large = calibrate(LoadedConfig(tree, {}), world_size=1, seconds=0.1)
    measured = large.peak_bytes - small.peak_bytes
    assert measured / STATED_FACTOR < sum(memory) < measured * STATED_FACTOR


LANGUAGE_SIZES = {
    "hidden_size": 256,
    "num_layers": 6,
    "num_heads": 4,
    "num_kv_heads": 2,
    "intermediate_size": 768,
}
PACKED = {"layout": {"type": "packed", "sequence_tokens": 400}}
LANGUAGE_VARIANTS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "sft": ("sft", {}, {}),
    "sft, packed": ("sft", PACKED, {}),
    "sft, checkpointed": ("sft", {"max_micro_batch_tokens": 1600}, {"checkpoint_activations": True}),
    "reward": ("reward", {}, {}),
    "dpo, with its reference": ("dpo", {}, {}),
    "sft, adapters": ("sft", {}, {"lora": {"rank": 8}}),
}


def language_tree(dataset: Path, method: dict[str, Any], loader: dict[str, Any]) -> dict[str, Any]:
    tree = preference_recipe(dataset, method, trainer={"max_steps": 20, "commit_every": 1})
    sizes = {"lanes": 2, "global_batch_size": 32, "window_rows": 64}
    return {**tree, "loader": {**tree["loader"], **sizes, **loader}}


@pytest.mark.slow
@pytest.mark.parametrize(
    "way",
    [
        pytest.param(way, marks=[pytest.mark.soak] if way not in ("sft", "sft, adapters") else [])
        for way in LANGUAGE_VARIANTS
    ],
)
def test_the_memory_of_a_language_model_is_as_the_formula_says(way: str, tmp_path: Path) -> None:
    method, loader, more = LANGUAGE_VARIANTS[way]
    rng = np.random.default_rng(0)
    rows = [
        {"input_ids": row[:200], "rejected_ids": row[200:400], "prompt_tokens": 0, "margin": 0.0}
        for row in rng.integers(1, 2000, (256, 400)).tolist()
    ]
    dataset = write_pairs(tmp_path / "pairs", rows)

    def forecast_and_measured(**sizes: int) -> tuple[int, int]:
        model = {"type": "new", "vocab_size": 2000, "max_tokens": 400, **sizes}
        if method == "dpo":
            folder = tmp_path / f"width-{sizes['hidden_size']}"
            build_causal(NewCausalConfig.model_validate(model)).save_pretrained(folder)
            model = {"type": "pretrained", "path": str(folder)}
        keys = {"type": method, "model": {**model, **more}, **({"train_on": "all"} if method == "sft" else {})}
        values = LoadedConfig(language_tree(dataset, keys, loader), {})
        memory = preview(*check_recipe(values), world_size=1).memory
        assert memory is not None and (memory.frozen > 0) == ("reference" in way or "adapters" in way)
        return sum(memory), calibrate(values, world_size=1, seconds=0.1).peak_bytes

    small = forecast_and_measured(hidden_size=8, num_layers=1, num_heads=1, num_kv_heads=1, intermediate_size=8)
    large = forecast_and_measured(**LANGUAGE_SIZES)
    output, acquired = large[0] - small[0], large[1] - small[1]
    print(way, output, acquired, small)
    assert acquired / STATED_FACTOR < output < acquired * STATED_FACTOR


@pytest.mark.soak
def test_the_memory_of_a_model_that_answers_is_as_the_formula_says(tmp_path: Path) -> None:
    dataset = prompt_dataset(tmp_path / "prompts", num_rows=320, longest=64)

    def forecast_and_measured(**sizes: int) -> tuple[int, int]:
        folder = tmp_path / f"width-{sizes['hidden_size']}"
        model = {"type": "new", "vocab_size": 2000, "max_tokens": 400, **sizes}
        build_causal(NewCausalConfig.model_validate(model)).save_pretrained(folder)
        tiny_tokenizer().save_pretrained(folder)
        tree = grpo_recipe(dataset, folder)
        tree["method"] |= {"group_size": 8, "sampling": {"max_tokens": 192}}
        tree["loader"] |= {"lanes": 2, "global_batch_size": 16, "window_rows": 64}
        tree["trainer"] |= {"max_steps": 20, "commit_every": 1}
        values = LoadedConfig(tree, {})
        memory = preview(*check_recipe(values), world_size=1).memory
        assert memory is not None
        return sum(memory), calibrate(values, world_size=1, seconds=0.1).peak_bytes

    small = forecast_and_measured(hidden_size=8, num_layers=1, num_heads=1, num_kv_heads=1, intermediate_size=8)
    large = forecast_and_measured(**LANGUAGE_SIZES)
    output, acquired = large[0] - small[0], large[1] - small[1]
    assert acquired / STATED_FACTOR < output < acquired * STATED_FACTOR


def test_sharded_weights_that_do_not_fit_gathered_are_refused_before_a_run_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd
) -> None:
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))
    tree = grpo_recipe(prompt_dataset(tmp_path / "prompts"), tmp_path / "base")
    (recipe := tmp_path / "recipe.yaml").write_text(yaml.safe_dump(tree))
    numbers = check_recipe(LoadedConfig(tree, {}))[0].method.num_parameters()
    assert numbers is not None
    assert run("train", recipe, "--check", "--measure", "0") == 0
    out = " ".join(capfd.readouterr().out.split())
    found = preview(*check_recipe(LoadedConfig(tree, {})), world_size=1)
    prompts = tree["loader"]["global_batch_size"] * found.num_steps
    assert found.completion_tokens == prompts * 4 * tree["method"]["sampling"]["max_tokens"] > found.num_tokens
    assert "a step, of prompts and of 4 answers to each up to " in out
    needed = 4 * numbers * 2 + 4 * numbers * 4
    monkeypatch.setattr("assay.workflows.preview.machine_bytes", lambda: needed - 1)
    assert run("train", recipe, "--parallel", "fsdp2", "--workers", "2") == 2
    assert "to sample completions each worker gathers all weights" in capfd.readouterr().err
    assert not list((tmp_path / "home").glob("runs/*"))
    monkeypatch.setattr("assay.workflows.preview.machine_bytes", lambda: needed)
    check_gathered_weights_fit(check_recipe(LoadedConfig(tree, {}))[0], "fsdp2", world_size=2)
    assert machine_bytes() > needed


@pytest.mark.slow
def test_the_last_step_is_evaluated_once_where_it_is_due_on_the_way_too(run_it) -> None:
    run, _, _ = run_it(trainer__evaluate_every=10)
    found = read_segment(segment_path(Path(run.run_dir), 1, 0)).metrics
    for name in ("validation_auc", "one_score"):
        assert found[name].steps.tolist() == [10, 20]
