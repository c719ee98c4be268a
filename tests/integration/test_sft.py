"""Fine-tuning a language model with real processes: killed, resized, sharded; and by the commands."""

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml

from assay.elastic.supervisor import RestartPolicy
from in_process import AssayAt
from language_rows import language_dataset, sft_recipe, small_model
from method_runs import digest, eventful
from one_rank import train_one_rank
from variants import soaked

KILL = {"faults": [{"type": "kill", "rank": 0, "step": 10, "phase": "compute"}]}
PACKED = {"layout": {"type": "packed", "sequence_tokens": 32}}
LINES = {"layout": {"type": "line", "tokens": 64, "row_tokens": 24}}
LAYOUTS = {"packed": PACKED, "lines": LINES}
VARIANTS: dict[str, dict[str, Any]] = {
    "lines": {"loader": LINES},
    "lines, in spans": {"loader": LINES, "method": {"train_on": "spans"}},
    "packed, in spans": {"loader": PACKED, "method": {"train_on": "spans"}},
    "checkpointed": {"method": {"model": small_model(checkpoint_activations=True)}},
    "several micro-batches": {"loader": {"max_micro_batch_tokens": 40}},
    "tied, gpt2": {"method": {"model": small_model(architecture="gpt2", tie_embeddings=True, num_kv_heads=None)}},
}


SOAKED = ("plain", "lines")
"""Other variants have all of their keys: several micro-batches are padded, and lines have spans."""


@pytest.fixture(scope="session")
def language(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return language_dataset(tmp_path_factory.mktemp("language"))


@pytest.mark.slow
def test_it_learns_and_its_validation_falls(language: Path, tmp_path: Path) -> None:
    tree = sft_recipe(language, trainer={"epochs": 3, "max_steps": 30, "evaluate_every": 15, "commit_every": 15})
    steps = train_one_rank(tree, tmp_path).steps
    assert steps[-1]["loss"] < 0.95 * steps[0]["loss"]
    assert steps[29]["validation_nats_per_token"] < steps[14]["validation_nats_per_token"]
    assert {"entropy", "token_accuracy"} <= steps[0].keys()


@pytest.mark.slow
@pytest.mark.parametrize("way", [*(way for way in VARIANTS if way not in SOAKED), *soaked(*SOAKED)])
def test_killed_and_resized_it_ends_with_the_same_weights(
    way: str, language: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))
    tree = sft_recipe(language, **VARIANTS.get(way, {}))
    undisturbed = digest(tree, "undisturbed", RestartPolicy())
    assert digest(tree, "eventful", eventful()) == undisturbed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "world_size", "parallel"),
    [
        pytest.param(*case, marks=[] if case in (("packed", 4, "fsdp2"), ("lines", 2, "ddp")) else pytest.mark.soak)
        for case in product(LAYOUTS, (2, 4), ("ddp", "fsdp2"))
    ],
)
def test_every_world_size_ends_with_the_same_weights(
    layout: str,
    world_size: int,
    parallel: str,
    language: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))
    tree = sft_recipe(language, trainer={"spot_check_every": 4}, loader=LAYOUTS[layout])
    alone = digest(tree, "alone", RestartPolicy())
    policy = RestartPolicy(parallel=(parallel,))
    assert digest(tree, "shared", policy, world_size) == alone


@pytest.fixture
def assay(tmp_path: Path) -> AssayAt:
    return AssayAt(tmp_path / "home")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_commands_take_it_as_they_are(layout: str, language: Path, assay: AssayAt, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    slices = {"slice_columns": ["language"]}
    trainer = {"evaluate_every": 4, "spot_check_every": 4}
    recipe.write_text(yaml.safe_dump(sft_recipe(language, method=slices, trainer=trainer, loader=LAYOUTS[layout])))
    (tmp_path / "kill.yaml").write_text(yaml.safe_dump(KILL))
    assay("train", recipe, "--run-id", "killed", "--workers", 2, "--faults", tmp_path / "kill.yaml")
    run = assay.json("runs", "show", "killed")
    assert run["status"] == "succeeded" and len(run["attempts"]) == 2
    measured = {item["metric"]["name"]: item["estimate"] for item in run["evaluation"]["overall"]["measured"]}
    assert list(measured) == ["nats_per_token", "token_accuracy"]
    assert {item["column"] for item in run["evaluation"]["slices"]} == {"language"}
    assert assay.json("runs", "audit", "killed")["verdict"] == "pass"
    assert assay.json("runs", "replay", "killed", "--step", 6)["verdict"] == "equal"
    assert assay.json("runs", "replay", "killed", "--step", 6, "--bisect")["verdict"] == "equal"
    assay("train", recipe, "trainer.optimizer.learning_rate=0.02", "--run-id", "faster")
    (found,) = assay.json("decide", "compare", "killed", "faster", "--out", tmp_path / "compared.html")
    assert found["metric"]["name"] == "nats_per_token" and found["difference"]["high"] < 0


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_law_is_fitted_to_runs_of_three_sizes(language: Path, assay: AssayAt, tmp_path: Path) -> None:
    recipe, runs = tmp_path / "recipe.yaml", []
    for width in (8, 16, 32):
        for steps in (10, 40):
            model = small_model(hidden_size=width, intermediate_size=2 * width)
            trainer = {"epochs": 4, "max_steps": steps, "commit_every": steps}
            recipe.write_text(yaml.safe_dump(sft_recipe(language, method={"model": model}, trainer=trainer)))
            runs.append(f"width-{width}-steps-{steps}")
            assay("train", recipe, "--run-id", runs[-1])
    page = tmp_path / "law.html"
    found = assay.json("scaling", "fit", *runs, "--form", "compute", "--resamples", 100, "--out", page)
    law = {item["name"]: item["estimate"]["value"] for item in found["law"]["parameters"]}
    assert found["law"]["num_points"] == 6 and 0 < law["alpha"] < 1 and "nan" not in str(found["law"])
    assert "<!doctype html>" in page.read_text()
    beyond = assay("scaling", "fit", *runs, "--form", "compute", "--predict", "compute=1e8", code=2).err
    assert "6 points are too few to test an extrapolation on" in beyond
    refused = assay("scaling", "fit", *runs, "--form", "chinchilla", code=2).err
    assert "6 points for the 5 parameters of 'chinchilla': expected at least 10" in refused
    (cost,) = assay.json("scaling", "code-length", runs[-1])["runs"]
    assert cost["bits"] > 0


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("method.model.max_tokens=20", "it takes 20 tokens, but the longest row"),
        ("method.model.vocab_size=30", "its vocabulary has 30 tokens"),
        ("method.model.num_heads=3", "must divide"),
        ("method.train_on=some", "method.train_on"),
    ],
)
@pytest.mark.slow
def test_what_cannot_work_is_refused_before_anything_is_made(
    override: str, message: str, language: Path, assay: AssayAt, tmp_path: Path
) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(sft_recipe(language)))
    assert message in assay("train", recipe, override, code=2).err
    assert not list((tmp_path / "home").glob("runs/*"))
