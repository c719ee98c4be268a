"""Reward models and DPO with real processes: killed, resized, sharded, by the commands; and what they learn."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from transformers.models.llama.configuration_llama import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaForCausalLM

from agreement.tiny_models import save_tiny
from assay.elastic.supervisor import RestartPolicy
from in_process import AssayAt
from integration.test_soak import seeds
from method_runs import digest, eventful
from one_rank import train_one_rank
from preference_rows import (
    END,
    FIRST_DIGIT,
    SEPARATOR,
    VOCABULARY,
    pair_row,
    preference_dataset,
    preference_recipe,
    small_model,
    write_pairs,
)
from variants import soaked

LINES = {"layout": {"type": "line", "tokens": 96, "row_tokens": 24}}
VARIANTS = {
    "reward": {},
    "dpo": {},
    "dpo, several micro-batches": {"max_micro_batch_tokens": 60},
    "reward, lines": LINES,
    "dpo, lines": LINES,
}


@pytest.fixture(scope="session")
def preferences(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return preference_dataset(tmp_path_factory.mktemp("preferences"))


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A language model, as a folder."""
    return save_tiny(LlamaForCausalLM, tmp_path_factory.mktemp("base") / "model", seed=3)


@pytest.fixture
def methods(base: Path) -> dict[str, dict[str, Any]]:
    return {
        "reward": {"type": "reward", "model": small_model(), "centring": 0.01},
        "dpo": {"type": "dpo", "model": {"type": "pretrained", "path": str(base)}},
    }


@pytest.mark.slow
@pytest.mark.parametrize("way", [*(way for way in VARIANTS if way != "dpo"), *soaked("dpo")])
def test_killed_resized_and_sharded_the_weights_are_the_same(
    way: str, preferences: Path, methods: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))
    tree = preference_recipe(preferences, methods[way.partition(",")[0]], loader=VARIANTS[way])
    assert digest(tree, "eventful", eventful()) == digest(tree, "undisturbed", RestartPolicy())


@pytest.fixture
def assay(tmp_path: Path) -> AssayAt:
    return AssayAt(tmp_path / "home")


def recipe_file(folder: Path, tree: dict[str, Any]) -> Path:
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(tree))
    return path


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("method", "override", "message"),
    [
        (
            "reward",
            "loader.layout={type: packed, sequence_tokens: 64}",
            "packed: method 'reward' does not support it",
        ),
        ("dpo", "loader.layout={type: packed, sequence_tokens: 64}", "packed: method 'dpo' does not support it"),
        ("reward", "method.model.max_tokens=9", "it takes 9 tokens, but the longest row"),
        ("reward", "method.margin_column=gain", "column 'gain' (in method) is not in dataset"),
        ("dpo", "method.reference={type: columns}", "column 'ref_chosen_logps' (in method) is not in dataset"),
        ("dpo", "method.loss.label_smoothing=0.5", "less than 0.5"),
        ("dpo", "method.model={type: new, vocab_size: 16}", "random weights"),
        ("dpo", "method.beta=0.2", "Perhaps you meant 'method.loss'"),
        ("dpo", "method.reference.path=/nowhere", "/nowhere: it has no config.json"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_made(
    method: str,
    override: str,
    message: str,
    preferences: Path,
    methods: dict[str, Any],
    assay: AssayAt,
    tmp_path: Path,
) -> None:
    recipe = recipe_file(tmp_path, preference_recipe(preferences, methods[method]))
    assert message in assay("train", recipe, override, code=2).err
    assert not list((tmp_path / "home").glob("*/run.json"))


OUTLIER = 20
"""A token that no row has, but those that are made to."""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_pairs_that_make_a_loss_not_finite_are_named(methods: dict[str, Any], assay: AssayAt, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    rows = [pair_row(rng, 4) for _ in range(240)]
    bad = {37, 120, 201}
    for row in bad:
        rows[row]["rejected_ids"][-2] = OUTLIER
    dataset = write_pairs(tmp_path / "data", rows)
    poisoned = LlamaForCausalLM.from_pretrained(methods["dpo"]["model"]["path"])
    poisoned.model.embed_tokens.weight.data[OUTLIER] = 3e38
    poisoned.save_pretrained(tmp_path / "poisoned")
    tree = preference_recipe(
        dataset,
        {
            "type": "dpo",
            "model": {"type": "pretrained", "path": str(tmp_path / "poisoned")},
            "reference": {"type": "frozen", "path": methods["dpo"]["model"]["path"]},
        },
        data={"split": {"type": "hash", "validation_fraction": 0.05}},
        trainer={"max_steps": 14},
    )
    output = assay("train", recipe_file(tmp_path, tree), "--run-id", "dies", code=1).err
    step = int(output.split(" is saved as a capsule")[0].split(" Step ")[-1])
    report = assay.json("runs", "replay", "dies", "--step", step, "--bisect", "--watch", code=1)
    assert report["rows"]["rows"] and {row["row_id"] for row in report["rows"]["rows"]} <= bad
    found = report["operators"]["finding"]
    assert found["module"].startswith("network.model.layers.0"), "the square of the embedding is no number"


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(short=1, soak=2))
def test_a_reward_model_learns_which_answer_is_nearer_to_sorted(seed: int, tmp_path: Path) -> None:
    dataset = preference_dataset(tmp_path / "data", num_rows=12_000, digits=(5, 5))
    tree = preference_recipe(
        dataset,
        {"type": "reward", "model": small_model()},
        loader={"global_batch_size": 64, "window_rows": 256},
        trainer={"max_steps": 200, "epochs": 2, "commit_every": 200},
    )
    (*_, last) = train_one_rank({**tree, "seed": seed}, tmp_path / "run").steps
    assert last["validation_accuracy"] >= 0.95


NUM_DIGITS = 5


def rising_and_falling(rng: np.random.Generator, count: int) -> list[dict[str, Any]]:
    """Digits to sort; both answers are sorted, and rising is preferred."""
    rows = []
    for _ in range(count):
        digits = [int(digit) for digit in rng.choice(np.arange(FIRST_DIGIT, VOCABULARY), NUM_DIGITS, replace=False)]
        prompt = [*digits, SEPARATOR]
        rising, falling = ([*sorted(digits, reverse=turned), END] for turned in (False, True))
        row = {"input_ids": prompt + rising, "rejected_ids": prompt + falling, "prompt_tokens": len(prompt)}
        rows.append({**row, "margin": 0.0})
    return rows


def undecided_model(folder: Path, seed: int) -> Any:
    """A model that answers rising or falling, as it likes; in a folder."""
    sizes = {"hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 2, "num_attention_heads": 4}
    torch.manual_seed(seed)
    network = LlamaForCausalLM(
        LlamaConfig(vocab_size=VOCABULARY, max_position_embeddings=32, bos_token_id=END, eos_token_id=END, **sizes)
    )
    optimizer, rng = torch.optim.AdamW(network.parameters(), lr=2e-3), np.random.default_rng(seed)
    for _ in range(150):
        responses = [row[rng.choice(["input_ids", "rejected_ids"])] for row in rising_and_falling(rng, 128)]
        tokens = torch.tensor(responses)
        logprobs = network(input_ids=tokens).logits[:, NUM_DIGITS:-1].log_softmax(-1)
        (-logprobs.gather(2, tokens[:, NUM_DIGITS + 1 :, None]).mean()).backward()
        optimizer.step()
        optimizer.zero_grad()
    network.save_pretrained(folder)
    return network


def greedy_shares(network: Any) -> tuple[float, float]:
    """Of greedy answers: the share that is what was preferred, and that is what was rejected."""
    rows = rising_and_falling(np.random.default_rng(99), 256)
    prompts = torch.tensor([row["input_ids"][: NUM_DIGITS + 1] for row in rows])
    whole = network.eval().generate(
        prompts,
        attention_mask=torch.ones_like(prompts),
        max_new_tokens=NUM_DIGITS + 1,
        do_sample=False,
        pad_token_id=0,
    )
    pairs = list(zip(whole.tolist(), rows, strict=True))
    return tuple(
        sum(output == row[side] for output, row in pairs) / len(rows) for side in ("input_ids", "rejected_ids")
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(short=1, soak=2))
def test_dpo_ends_the_rejected_behaviour_and_says_what_became_of_the_chosen_one(seed: int, tmp_path: Path) -> None:
    network = undecided_model(tmp_path / "base", seed)
    _, rejected = greedy_shares(network)
    assert rejected > 0.3
    dataset = write_pairs(tmp_path / "data", rising_and_falling(np.random.default_rng(5), 3000))
    tree = preference_recipe(
        dataset,
        {"type": "dpo", "model": {"type": "pretrained", "path": str(tmp_path / "base")}},
        loader={"global_batch_size": 64, "window_rows": 64},
        trainer={"max_steps": 30, "commit_every": 30, "optimizer": {"learning_rate": 3e-4}},
    )
    trained = train_one_rank({**tree, "seed": seed}, tmp_path / "run")
    network.load_state_dict({name.removeprefix("network."): weight for name, weight in trained.weights.items()})
    chosen, rejected = greedy_shares(network)
    assert rejected < 0.01 < chosen
    first, last = trained.steps[0], trained.steps[-1]
    assert last["accuracy"] == 1.0 and last["margin"] > 1.0
    # Displacement: what was chosen has become less likely, too, and the numbers of a step say so.
    assert last["chosen_logprob"] < first["chosen_logprob"]
    assert last["rejected_logprob"] < last["chosen_logprob"] - 10
    assert last["chosen_reward"] < 0 == first["chosen_reward"]
