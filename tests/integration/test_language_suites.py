"""Commits of language methods answer suites from the queue; the numbers are those of plain transformers."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch.nn.functional import logsigmoid

from assay.base.clock import SystemClock
from assay.base.config import LoadedConfig
from assay.base.errors import ConfigError, DataError
from assay.data.dataset.dataset import Dataset
from assay.data.dataset.split import split_view
from assay.records.benchmark import BenchmarkResult
from assay.records.run import Run
from assay.statistics.benchmark_items import load_result, read_items, result_folders
from assay.store.home import Home
from assay.training.recipe import recipe_of
from assay.workflows.bookkeeping import writer_of
from assay.workflows.evaluation.queue import queue_of, work
from assay.workflows.run import create_run
from integration.test_language_export import MODEL, conversations, exported, home, preferences, recipe
from one_rank import train_here

__all__ = ["conversations", "home", "preferences"]
TEXT = "3 plus 4\nthat is 28; ✓ that is it\n" * 8
CHOICES: list[dict[str, Any]] = [
    {"prompt": "1 plus 2\n", "choices": ["that is 10", "that is"], "answer": 0},
    {"prompt": "3 plus 3", "choices": [" who", " that is 27", "?"], "answer": 1},
]


def trained(home: Home, tree: dict[str, Any]) -> Run:
    run = create_run(home, LoadedConfig(tree, {}), run_id=tree["name"])
    train_here(run)
    return run


@pytest.fixture
def evaluate_run(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Results and items of a run's last commit on benchmarks, by name."""

    def evaluate(run: Run, *benchmarks: dict[str, Any]) -> dict[str, tuple[BenchmarkResult, list[dict[str, Any]]]]:
        suite = tmp_path / "suite.yaml"
        suite.write_text(yaml.safe_dump({"name": "s", "benchmarks": list(benchmarks)}))
        with writer_of(Home.from_environment(), run) as writer:
            work(queue_of(run, suite=str(suite)), writer, clock=SystemClock(), follow=False)
        folders = result_folders(Path(run.run_dir) / "benchmarks")
        results = [(load_result(folder), folder) for folder in folders]
        return {result.benchmark: (result, read_items(folder, result).to_pylist()) for result, folder in results}

    return evaluate


def plain_model(home: Home, run: Run, folder: Path) -> tuple[Any, Any]:
    """What left the run, as transformers has it."""
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

    found = exported(home, run.run_id, folder).folder
    kind = AutoModelForSequenceClassification if recipe_of(run).method.type == "reward" else AutoModelForCausalLM
    return kind.from_pretrained(found).eval(), AutoTokenizer.from_pretrained(found)


@torch.no_grad()
def token_nats(model: Any, ids: list[int]) -> np.ndarray:
    """Of every token but the first, from all logits at once."""
    tokens = torch.tensor([ids])
    logprobs = model(tokens).logits[0, :-1].double().log_softmax(-1)
    return -logprobs.gather(1, tokens[0, 1:, None])[:, 0].numpy()


def held_out_rows(run: Run) -> list[dict[str, Any]]:
    """The rows of the run's own split, with their ids."""
    data = recipe_of(run).data
    dataset = Dataset.open(Path(data.dataset))
    view = split_view(dataset, data.split, "validation")
    return [
        {**row, "row_id": int(row_id)}
        for group in range(len(dataset.groups))
        for row_id, row in zip(
            view.row_ids(group), view.read(group, list(dataset.manifest.columns)).to_pylist(), strict=True
        )
    ]


def test_texts_are_asked_of_commits_as_plain_transformers_answers_them(
    conversations: Path, home: Home, tmp_path: Path, evaluate_run: Callable[..., Any]
) -> None:
    run = trained(home, recipe(conversations, {"type": "sft", "train_on": "spans", "model": MODEL}))
    (tmp_path / "text.txt").write_text(TEXT)
    (tmp_path / "choices.jsonl").write_text("\n".join(map(json.dumps, CHOICES)))
    found = evaluate_run(
        run,
        {"type": "bits_per_byte", "name": "text", "files": ["text.txt"]},
        {"type": "multiple_choice", "name": "choices", "items": "choices.jsonl", "normalise": "tokens"},
    )
    model, tokenizer = plain_model(home, run, tmp_path / "model")

    def ids(text: str) -> list[int]:
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    whole = ids(TEXT)
    assert len(whole) > 150
    # Windows of 96 tokens, each token with half a window before it; the first is nobody's to say.
    bits = [math.log2(MODEL["vocab_size"])]
    for first in range(1, len(whole)):
        begin = 0 if first < 96 else first - 48 - (first - 96) % 48
        bits.append(token_nats(model, whole[begin : first + 1])[-1] / math.log(2))
    result, items = found["text"]
    assert (result.unit, result.higher_is_better) == ("bits per byte", False)
    assert result.score.value == pytest.approx(sum(bits) / len(TEXT.encode()), rel=1e-5)
    assert sum(item["weight"] for item in items) == len(TEXT.encode())
    for request, item in zip(CHOICES, found["choices"][1], strict=True):
        prompt = request["prompt"].rstrip()
        rest = request["prompt"][len(prompt) :]
        costs = []
        for choice in request["choices"]:
            tokens = ids(prompt + rest + choice)
            number = len(tokens) - len(ids(prompt))
            costs.append(token_nats(model, tokens)[-number:].sum() / number / math.log(2))
        assert item["completion"] == request["choices"][int(np.argmin(costs))]
        details = json.loads(item["details"])
        assert details["bits_of_the_right_one"] == pytest.approx(costs[request["answer"]], rel=1e-5)


def test_held_out_rows_of_a_slice_have_the_perplexity_of_all_their_trained_tokens(
    conversations: Path, home: Home, tmp_path: Path, evaluate_run: Callable[..., Any]
) -> None:
    run = trained(home, recipe(conversations, {"type": "sft", "train_on": "spans", "model": MODEL}))
    found = evaluate_run(
        run,
        {"type": "held_out", "name": "all"},
        {"type": "held_out", "name": "twos", "where": {"first": 2}, "chunk_items": 1},
        {"type": "held_out", "name": "right", "score": "token_accuracy"},
    )
    model, _ = plain_model(home, run, tmp_path / "model")
    rows = held_out_rows(run)
    for name, request in (("all", rows), ("twos", [row for row in rows if row["first"] == 2])):
        nats, tokens = 0.0, 0
        for row in request:
            spans, costs = row["trained_spans"], token_nats(model, row["input_ids"])
            inside = [location for k in range(0, len(spans), 2) for location in range(max(1, spans[k]), spans[k + 1])]
            nats, tokens = nats + sum(costs[location - 1] for location in inside), tokens + len(inside)
        result, items = found[name]
        assert len(items) == len(request) > 0 and sum(item["weight"] for item in items) == tokens
        assert result.score.value == pytest.approx(nats / tokens, rel=1e-5)
        assert result.metrics["perplexity"] == pytest.approx(math.exp(nats / tokens), rel=1e-5)
        assert {item["cluster"] for item in items} == {row["shard_id"] for row in request}
    assert found["right"][0].higher_is_better and not found["all"][0].higher_is_better
    with pytest.raises(DataError, match="benchmark 'nobody' has no items"):
        evaluate_run(run, {"type": "held_out", "name": "nobody", "where": {"first": 99}})


def test_pairs_are_asked_of_reward_models_by_slice(
    preferences: Path, home: Home, tmp_path: Path, evaluate_run: Callable[..., Any]
) -> None:
    run = trained(home, recipe(preferences, {"type": "reward", "model": MODEL}))
    found = evaluate_run(
        run,
        {"type": "held_out", "name": "all", "score": "log_loss"},
        {"type": "held_out", "name": "twos", "where": {"first": 2}},
    )
    model, _ = plain_model(home, run, tmp_path / "model")
    rows = held_out_rows(run)
    with torch.no_grad():
        margins = {
            row["row_id"]: float(
                model(torch.tensor([row["input_ids"]])).logits - model(torch.tensor([row["rejected_ids"]])).logits
            )
            for row in rows
        }
    losses = [-float(logsigmoid(torch.tensor(margin))) for margin in margins.values()]
    assert found["all"][0].score.value == pytest.approx(np.mean(losses), rel=1e-5)
    of_twos = [margins[row["row_id"]] > 0 for row in rows if row["first"] == 2]
    result, items = found["twos"]
    assert len(items) == len(of_twos) > 0 and result.unit == "share"
    assert result.score.value == np.mean(of_twos)
    for item in items:
        assert json.loads(item["details"])["margin"] == pytest.approx(margins[int(item["item_id"])], abs=1e-5)


def test_pairs_are_asked_of_dpo_by_the_reward_that_it_implies(
    conversations: Path, preferences: Path, home: Home, tmp_path: Path, evaluate_run: Callable[..., Any]
) -> None:
    start = trained(home, recipe(conversations, {"type": "sft", "train_on": "all", "model": MODEL}))
    before, _ = plain_model(home, start, tmp_path / "base")
    method = {
        "type": "dpo",
        "model": {"type": "pretrained", "path": str(tmp_path / "base")},
        "loss": {"beta": 0.3},
    }
    run = trained(home, recipe(preferences, method))
    found = evaluate_run(
        run, {"type": "held_out", "name": "right"}, {"type": "held_out", "name": "margin", "score": "margin"}
    )
    after, _ = plain_model(home, run, tmp_path / "after")

    def ratio(row: dict[str, Any], side: str) -> float:
        begin = row["prompt_tokens"] - 1
        return token_nats(before, row[side])[begin:].sum() - token_nats(after, row[side])[begin:].sum()

    rows = held_out_rows(run)
    margins = [0.3 * (ratio(row, "input_ids") - ratio(row, "rejected_ids")) for row in rows]
    assert found["margin"][0].score.value == pytest.approx(np.mean(margins), rel=1e-4, abs=1e-5)
    assert found["right"][0].score.value == np.mean([margin > 0 for margin in margins])


@pytest.mark.parametrize(
    ("benchmark", "message"),
    [
        ({"type": "classification", "name": "b"}, "'reward', which answers only those of type held_out"),
        ({"type": "bits_per_byte", "name": "b", "files": ["*.txt"]}, "answers only those of type held_out"),
        ({"type": "held_out", "name": "b", "score": "nats"}, "'reward': accuracy, log_loss, margin"),
        ({"type": "held_out", "name": "b", "where": {"colour": "red"}}, "has no column 'colour'"),
    ],
)
def test_what_a_run_cannot_answer_is_refused_before_anything_is_scored(
    benchmark: dict[str, Any], message: str, preferences: Path, home: Home, evaluate_run: Callable[..., Any]
) -> None:
    run = trained(home, recipe(preferences, {"type": "reward", "model": MODEL}))
    with pytest.raises(ConfigError, match=message):
        evaluate_run(run, benchmark)
    assert not result_folders(Path(run.run_dir) / "benchmarks")
