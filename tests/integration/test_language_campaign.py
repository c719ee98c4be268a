"""Campaigns over candidates of language methods, by the commands: to a decision, and a memo that says it."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from in_process import AssayAt
from integration.test_language_export import MODEL, conversations, preferences, recipe
from prompt_rows import grpo_recipe, prompt_dataset
from variants import soaked

__all__ = ["conversations", "preferences"]
TEXT = "".join(f"{first} plus {second}\nthat is {8 * first + second}\n" for first in range(8) for second in range(8))


class Assay(AssayAt):
    """Commands in a folder, whose recipes and the like it writes."""

    def write(self, name: str, tree: dict[str, Any]) -> Path:
        (self.folder / name).write_text(yaml.safe_dump(tree))
        return self.folder / name


def campaign(assay: Assay, tree: dict[str, Any], **keys: Any) -> tuple[list[Any], str]:
    """The decisions, and the memo."""
    assay.write("recipe.yaml", tree)
    path = assay.write(
        "campaign.yaml",
        {
            "name": "tiny",
            "question": "Does a far higher learning rate help?",
            "recipe": "recipe.yaml",
            "candidates": [
                {"name": "faster", "patch": {"trainer.optimizer.learning_rate": 0.02}},
                {"name": "slower", "patch": {"trainer.optimizer.learning_rate": 0.0001}},
            ],
            "seeds": 3,
            "budget_device_hours": 1,
            **keys,
        },
    )
    assay("decide", "run", path)
    (folder,) = assay.folder.glob("home/**/memo.md")
    decisions = assay.json("decide", "show", "tiny")
    return decisions, folder.read_text()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_candidates_of_sft_end_in_a_memo_by_bits_a_byte(conversations: Path, tmp_path: Path) -> None:
    assay = Assay(tmp_path / "home")
    (tmp_path / "texts").mkdir()
    for part in range(8):
        (tmp_path / "texts" / f"{part}.txt").write_text(TEXT[part * len(TEXT) // 8 : (part + 1) * len(TEXT) // 8])
    assay.write(
        "suite.yaml",
        {
            "name": "texts",
            "benchmarks": [
                {"type": "bits_per_byte", "name": "bits", "files": ["texts/*.txt"], "block_bytes": 64},
                {"type": "held_out", "name": "held-out"},
            ],
        },
    )
    tree = recipe(conversations, {"type": "sft", "train_on": "all", "model": MODEL})
    tree["trainer"] = {"max_steps": 12, "commit_every": 12, "optimizer": {"learning_rate": 1e-3}}
    tree["loader"]["global_batch_size"] = 8
    decisions, memo = campaign(
        assay,
        tree,
        benchmarks=[
            {"type": "suite", "name": "bits", "suite": "suite.yaml"},
            {"type": "suite", "name": "held-out", "suite": "suite.yaml"},
            {"type": "predictions", "name": "own", "score": "own"},
        ],
        rule={"primary": ["bits"], "least_effect": 0.2, "guardrails": [{"benchmark": "own", "margin": 0.5}]},
    )
    by_name = {decision["candidate"]: decision for decision in decisions}
    assert (by_name["faster"]["recommendation"], by_name["slower"]["recommendation"]) == ("scale", "stop")
    bits, held_out, own = by_name["faster"]["effects"]
    assert bits["unit"] == "bits per byte" and not bits["higher_is_better"]
    assert bits["candidate_score"] < bits["baseline_score"]
    assert bits["effect"]["value"] == pytest.approx(bits["baseline_score"] - bits["candidate_score"])
    assert held_out["by_seed"] == pytest.approx(own["by_seed"], abs=0.05), "tokens and rows weigh differently"
    fell = f"(from {bits['baseline_score']:.4f} to {bits['candidate_score']:.4f}; less is better)"
    assert fell in memo
    assert "bits (less is better)" in memo and "bits per byte" in memo
    assay("scaling", "code-length", "tiny-baseline-s0", "tiny-faster-s0")


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("method", [*soaked("reward"), "dpo"])
def test_candidates_of_methods_of_pairs_end_in_a_memo(
    method: str, conversations: Path, preferences: Path, tmp_path: Path
) -> None:
    assay = Assay(tmp_path / "home")
    model: dict[str, Any] = MODEL
    if method == "dpo":
        start = recipe(conversations, {"type": "sft", "train_on": "all", "model": MODEL})
        assay("train", assay.write("sft.yaml", start), "--run-id", "sft")
        assay("runs", "export", "sft", "--out", tmp_path / "base")
        model = {"type": "pretrained", "path": str(tmp_path / "base")}
    held_out = {"type": "held_out", "name": "held-out", "score": "margin"}
    assay.write("suite.yaml", {"name": "pairs", "benchmarks": [held_out]})
    decisions, memo = campaign(
        assay,
        recipe(preferences, {"type": method, "model": model}),
        benchmarks=[
            {"type": "predictions", "name": "own", "score": "own"},
            {"type": "suite", "name": "held-out", "suite": "suite.yaml"},
        ],
        rule={"primary": ["own"], "least_effect": 0.05},
    )
    for decision in decisions:
        own, margin = decision["effects"]
        assert (own["unit"], margin["unit"]) == ("share", "rewards") and own["higher_is_better"]
    assert "points" in memo


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_length_and_distance_of_held_out_answers_guard_a_campaign_of_rewards(tmp_path: Path) -> None:
    assay = Assay(tmp_path / "home")
    tree = grpo_recipe(
        prompt_dataset(tmp_path / "rows"),
        tmp_path / "base",
        method={"kl": 0.01},
        trainer={"max_steps": 6, "commit_every": 6, "optimizer": {"learning_rate": 1e-4}},
    )
    benchmarks = [
        {"type": "predictions", "name": name, "score": score}
        for name, score in {"held-out": "own", "length": "length", "distance": "kl"}.items()
    ]
    guardrails = [{"benchmark": "length", "margin": 3.0}, {"benchmark": "distance", "margin": 0.01}]
    decisions, memo = campaign(
        assay,
        tree,
        candidates=[{"name": "far", "patch": {"trainer.optimizer.learning_rate": 0.03}}],
        benchmarks=benchmarks,
        rule={"primary": ["held-out"], "least_effect": 0.05, "guardrails": guardrails},
    )
    [far] = decisions
    units = {item["benchmark"]: (item["unit"], item["higher_is_better"]) for item in far["effects"]}
    assert units["length"] == ("tokens", False) and units["distance"] == ("nats per token", False)
    assert far["recommendation"] == "stop" and "distance" in far["decided_by"]
    assert "nats per token" in memo
