"""Rows and recipes of language models that cannot work: one clear error each, before anything is written."""

import json
import resource
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from transformers.models.llama.modeling_llama import LlamaForCausalLM

from agreement.tiny_models import save_tiny
from assay.base.errors import DataError
from assay.data.dataset import build
from assay.data.dataset.formats import template
from assay.data.pools.pool import ThreadPool
from in_process import assay as run
from language_rows import language_dataset, sft_recipe
from preference_rows import pair_row, preference_dataset, preference_recipe, small_model, write_pairs
from prompt_rows import grpo_recipe, prompt_dataset

USER, ASSISTANT = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether workers are processes is told elsewhere, and each takes seconds to start."""
    monkeypatch.setattr(build, "ProcessPool", lambda _: ThreadPool(1))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


BUILDS: dict[str, tuple[str, dict[str, Any], list[str], str]] = {
    "no assistant turn": ("chat", {"messages": [USER]}, [], "line 1"),
    "unknown role": ("chat", {"messages": [USER, {"role": "wizard", "content": "x"}]}, [], "wizard"),
    "no content": ("chat", {"messages": [USER, {"role": "assistant"}]}, [], "line 1"),
    "no messages": ("chat", {"messages": []}, [], "no row is left"),
    "messages as text": ("chat", {"messages": "hi"}, [], "line 1"),
    "chosen equal to rejected": ("pairs", {"prompt": "a", "chosen": "b", "rejected": "b"}, [], "line 1"),
    "an empty completion": (
        "pairs",
        {"prompt": "a", "chosen": "", "rejected": "b"},
        ["--end-token", ""],
        "line 1",
    ),
    "a completion that is empty": ("chat", {"prompt": "a", "completion": ""}, ["--end-token", ""], "line 1"),
    "rejected is missing": ("pairs", {"prompt": "a", "chosen": "b"}, [], "rejected"),
    "a margin that is no number": (
        "pairs",
        {"prompt": "a", "chosen": "b", "rejected": "c", "margin": "large"},
        [],
        "margin",
    ),
    "a margin that is not finite": (
        "pairs",
        {"prompt": "a", "chosen": "b", "rejected": "c", "margin": float("nan")},
        [],
        "margin",
    ),
    "a prompt that is no text": ("prompts", {"prompt": 3}, [], "line 1"),
    "no room for a token": ("chat", {"messages": [USER, ASSISTANT]}, ["--max-tokens", "1"], "no row is left"),
    "a context of nothing": ("chat", {"messages": [USER, ASSISTANT]}, ["--max-tokens", "0"], "max_tokens"),
    "a template of another tokenizer": (
        "chat",
        {"messages": [USER, ASSISTANT]},
        ["--chat-template", "chatml", "--tokenizer", "BASE"],
        "is another tokenizer's",
    ),
}


@pytest.mark.parametrize("name", BUILDS)
def test_rows_that_cannot_be_learned_from_are_not_built(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    format, row, options, output = BUILDS[name]
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    base = save_tiny(LlamaForCausalLM, tmp_path / "base", seed=3)
    options = [
        str(base) if option == "BASE" else str(tmp_path / "template.jinja") if "{%" in option else option
        for option in options
    ]
    if "--tokenizer" not in options:
        options += ["--tokenizer", "new:400"]
    if format == "chat" and "--chat-template" not in options:
        options += ["--chat-template", "chatml"]
    assert run("data", "build", tmp_path / "rows.jsonl", "--format", format, *options, "--out", tmp_path / "out") == 2
    error = capfd.readouterr().err
    assert output in error and error.count("error: ") == 1 and "Traceback" not in error, error
    assert not (tmp_path / "out" / "manifest.json").exists()
    # That rows are too long is known once they are tokens.
    assert name == "no room for a token" or not list(tmp_path.glob("out/**/*.parquet"))


DOUBLED = "{% set all = namespace(it='ab') %}{% for n in range(60) %}{% set all.it = all.it ~ all.it %}{% endfor %}"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            "{% for one in range(99999) %}{% for two in range(99999) %}{% endfor %}{% endfor %}",
            "takes longer than 0.2 s",
        ),
        (DOUBLED, "takes more than 1024 MiB of memory"),
        ("{{ 'a' * 10**11 }}", "takes more than 1024 MiB of memory"),
        ("{{ '%99999999999d' % 3 }}", "takes more than 1024 MiB of memory"),
        ("{% for n in range(10**9) %}{% endfor %}", "cannot render it"),
    ],
)
def test_a_template_has_its_time_and_its_memory(source: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Pages of a gigabyte take their time on a busy machine.
    monkeypatch.setattr(template, "MAX_SECONDS", 0.2 if "longer" in message or "render" in message else 10.0)
    before = resource.getrlimit(resource.RLIMIT_AS)
    with pytest.raises(DataError, match=message):
        template.ChatTemplate(source, {}, where="theirs").render([USER], {}, "line 1")
    assert resource.getrlimit(resource.RLIMIT_AS) == before
    assert template.ChatTemplate("{{ messages[0].content }}", {}, where="ours").render([USER], {}, "line 1") == "hi"


@pytest.fixture
def language(tmp_path: Path) -> Path:
    return language_dataset(tmp_path / "language", num_rows=60)


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    return preference_dataset(tmp_path / "pairs", num_rows=60)


def reward(**keys: Any) -> dict[str, Any]:
    return {"type": "reward", "model": small_model(), **keys}


RECIPES: dict[str, tuple[str, dict[str, Any], str]] = {
    "a row longer than the model": (
        "language",
        {"model": {"max_tokens": 9}},
        "it takes 9 tokens, but the longest row",
    ),
    "a smaller vocabulary": ("language", {"model": {"vocab_size": 20}}, "its vocabulary has 20 tokens"),
    "a context of nothing": ("language", {"model": {"max_tokens": 0}}, "max_tokens"),
    "an adapter of nothing": (
        "language",
        {"model": {"lora": {"targets": ["nobody"]}}},
        "no matrix is called 'nobody'",
    ),
    "packed pairs": (
        "pairs",
        {"loader": {"layout": {"type": "packed", "sequence_tokens": 64}}},
        "does not support it",
    ),
    "a line shorter than a row": (
        "language",
        {"loader": {"layout": {"type": "line", "tokens": 10}}},
        "Use loader.layout.tokens=",
    ),
    "rows longer than row_tokens": (
        "language",
        {"loader": {"layout": {"type": "line", "tokens": 64, "row_tokens": 9}}},
        "Use loader.layout.row_tokens=",
    ),
    "a line shorter than a pair": (
        "pairs",
        {"loader": {"layout": {"type": "line", "tokens": 16}}},
        "a line holds both sequences of a pair",
    ),
    "pairs for sft's spans": ("pairs", {"type": "sft", "train_on": "spans"}, "assay data build --format chat"),
    "chats for a reward model": ("language", {"type": "reward"}, "assay data build --format pairs"),
    "chats for DPO": ("language", {"type": "dpo"}, "assay data build --format pairs"),
    "margins that are not there": ("pairs", {"margin_column": "gain"}, "column 'gain'"),
    "margins that are text": ("pairs", {"margin_column": "shard_id"}, "shard_id"),
    "columns that nobody wrote": (
        "pairs",
        {"type": "dpo", "reference": {"type": "columns"}},
        "assay data score",
    ),
}


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_that_cannot_be_trained_leave_no_run(
    name: str, language: Path, pairs: Path, tmp_path: Path, home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rows, changes, output = RECIPES[name]
    tree = sft_recipe(language) if rows == "language" else preference_recipe(pairs, reward())
    changes = dict(changes)
    tree["loader"] |= changes.pop("loader", {})
    model = tree["method"]["model"] | changes.pop("model", {})
    if changes.get("type") == "dpo":
        model = {"type": "pretrained", "path": str(save_tiny(LlamaForCausalLM, tmp_path / "base", seed=3))}
    method = {"type": tree["method"]["type"], **({"train_on": "all"} if rows == "language" else {}), **changes}
    if method["type"] != "sft":
        method.pop("train_on", None)
    tree["method"] = {**method, "model": model}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(tree))
    assert run("train", tmp_path / "recipe.yaml", "--run-id", "refused") == 2
    error = capfd.readouterr().err
    assert output in error and error.count("error: ") == 1 and "Traceback" not in error, error
    assert not (home / "refused").exists()


@pytest.mark.parametrize(
    ("section", "changes", "message"),
    [
        ("loader", {"layout": {"type": "packed", "sequence_tokens": 64}}, "method 'grpo' does not support it"),
        ("loader", {"layout": {"type": "line", "tokens": 3}}, "a line holds a lane's prompts, or a prompt with its"),
        ("method", {"sampling": {"max_tokens": 60}}, "with the longest prompt of dataset"),
    ],
)
def test_prompts_that_cannot_be_asked_leave_no_run(
    section: str, changes: Any, message: str, tmp_path: Path, home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    tree = grpo_recipe(prompt_dataset(tmp_path / "prompts"), tmp_path / "base", **{section: changes})
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(tree))
    assert run("train", tmp_path / "recipe.yaml", "--run-id", "refused") == 2
    assert message in capfd.readouterr().err
    assert not (home / "refused").exists()


def test_adapters_without_their_package_leave_no_run(
    language: Path, tmp_path: Path, home: Path, capfd: pytest.CaptureFixture[str], monkeypatch
) -> None:
    """It was found out by the first rank, half a minute into an attempt that was on record."""
    monkeypatch.setitem(sys.modules, "peft", None)
    tree = sft_recipe(language)
    tree["method"]["model"]["lora"] = {"rank": 2}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(tree))
    assert run("train", tmp_path / "recipe.yaml", "--run-id", "refused") == 2
    assert "method.model.lora: PEFT is not installed. pip install 'assay[lora]'" in capfd.readouterr().err
    assert not (home / "refused").exists()


@pytest.mark.parametrize("value", [None, float("nan"), float("inf")])
@pytest.mark.parametrize("column", ["margin", "ref_chosen_logps"])
def test_adopted_pairs_with_a_number_that_is_none_are_refused(
    column: str, value: float | None, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    rows = [pair_row(rng, 4) for _ in range(9)]
    dataset = write_pairs(tmp_path / "pairs", rows)
    source = dataset.parent / "source" / "1.parquet"
    table = pq.read_table(source)
    numbers = pa.array([0.5, value, 0.5], pa.float32())
    others = [path for path in source.parent.iterdir() if path != source]
    for path, values in ((source, numbers), *((other, pa.array([0.5] * 3, pa.float32())) for other in others)):
        table = pq.read_table(path)
        table = table.drop_columns([column]) if column in table.column_names else table
        pq.write_table(table.append_column(column, values), path)
    assert run("data", "index", source.parent, "--no-label", "--out", tmp_path / "out") == 2
    error = capfd.readouterr().err
    assert f"1.parquet: row group 0: row 1: {column}" in error, error
    assert not (tmp_path / "out").exists()


def test_shards_of_gradients_that_are_summed_otherwise_leave_no_run(
    language: Path, tmp_path: Path, home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """It was found out by the launch, and left a run that could never be trained so."""
    tree = sft_recipe(language, trainer={"gradient_sum": "all_reduce"})
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(tree))
    assert run("train", tmp_path / "recipe.yaml", "--run-id", "refused", "--parallel", "fsdp2") == 2
    assert "--parallel fsdp2 needs trainer.gradient_sum=tree" in capfd.readouterr().err
    by_speed = "--run-id", "refused", "--parallel", "fsdp2", "--share", "speed"
    assert run("train", tmp_path / "recipe.yaml", *by_speed) == 2
    assert "--share speed does not work with --parallel fsdp2: all workers gather" in capfd.readouterr().err
    assert not (home / "refused").exists()
