"""What SFT learns of real text, beside n-grams and TRL: `python benchmarks/learning.py [--seeds N]`.

Signatures and docstrings of this machine's standard library (`recipes/sft/docstrings.py`) are learned from
scratch by the recipe's model, three times over, whole files held out. On these, in nats a token:

    ours, some seeds     with `assay train`; held-out values on the way are the curve
    TRL, the same seeds  the same rows, sizes, rate and schedule, where trl is installed
    n-grams              interpolated Kneser-Ney of 2, 3 and 5 tokens, counted on the same training rows

Wanted: ours below the bigram, and no further from TRL's mean than the luck of seeds explains. The last line is
one JSON object.
"""

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from scipy.stats import t as student_t
from transformers.models.llama.configuration_llama import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaForCausalLM

from assay.base.seeds import derive_key
from assay.data.dataset.dataset import Dataset
from assay.data.dataset.split import Part, split_view
from assay.evals.commit_model import load_committed
from assay.models.causal_config import PretrainedCausalConfig
from assay.models.token_scores import CausalNetwork
from assay.store.commit_log import CommitLog
from assay.store.home import Home
from assay.store.metrics.recorded import recorded_steps
from assay.store.objects import open_store
from assay.training.recipe import Recipe
from assay.workflows.run import load_run
from harness import CHECKOUT, assay, options_of, print_result, workspace
from ngrams import NGram

VOCABULARY = 2000
BATCH_ROWS, WARM_UP_STEPS, RATE = 32, 50, 3e-3
ORDERS = (2, 3, 5)
TRL = "--trl"
"""Tells this file to train one seed with TRL."""

Rows = list[list[int]]


def recipe_tree(dataset: Path, epochs: int, evaluate_every: int) -> dict[str, Any]:
    """The shipped recipe, on all tokens of a row, and rows at random."""
    tree: dict[str, Any] = yaml.safe_load((CHECKOUT / "recipes/sft/docstrings.yaml").read_text())
    tree["data"]["dataset"] = str(dataset)
    tree["method"]["train_on"] = "all"
    # As TRL deals them by default: rows of one length together learn a little less here, ours and TRL's alike.
    tree["loader"]["layout"] = {"type": "padded"}
    tree["trainer"] |= {"epochs": epochs, "evaluate_every": evaluate_every}
    return tree


def write_dataset(folder: Path) -> Path:
    """Signatures with their docstrings as rows of text."""
    script = CHECKOUT / "recipes/sft/docstrings.py"
    created = subprocess.run([sys.executable, str(script)], check=True, capture_output=True, text=True).stdout
    rows = [json.loads(line) for line in created.splitlines()]
    texts = [{"text": row["prompt"] + row["completion"], "file": row["file"]} for row in rows]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in texts))
    options = ["--format", "text", "--tokenizer", f"new:{VOCABULARY}", "--group-by", "file"]
    assay("data", "build", str(folder / "rows.jsonl"), *options, "--out", str(folder / "dataset"))
    return folder / "dataset"


def rows_of(tree: dict[str, Any], part: Part) -> Rows:
    """The tokens of a part's rows."""
    recipe = Recipe.model_validate(tree)
    view = split_view(Dataset.open(Path(recipe.data.dataset)), recipe.data.split, part)
    groups = [view.read(group, ["input_ids"])["input_ids"].to_pylist() for group in range(len(view.selection))]
    return [row for group in groups for row in group]


@torch.no_grad()
def nats_of_model(network: torch.nn.Module, rows: Rows) -> float:
    """Mean over all tokens but each row's first."""
    network.eval()
    scored = [row for row in rows if len(row) > 1]
    total = sum(float(network(torch.tensor([row])).logprobs.sum()) for row in scored)
    return -total / sum(len(row) - 1 for row in scored)


def nats_of_ngram(training: Rows, held_out: Rows, order: int) -> tuple[float, float]:
    """Likewise; and as the curve has it, a mean over rows."""
    model = NGram(training, order=order, vocab_size=VOCABULARY)
    nats = [model.nats(row) for row in held_out if len(row) > 1]
    return float(np.concatenate(nats).mean()), float(np.mean([row.mean() for row in nats]))


def train_ours(recipe: Path, seed: int) -> None:
    assay("train", str(recipe), f"seed={seed}", "--run-id", f"seed-{seed}")


def ours(seed: int, held_out: Rows) -> tuple[float, dict[int, float]]:
    """The last commit's nats a token, and the curve of held-out values (a mean over rows) by step."""
    run = load_run(Home.from_environment(), f"seed-{seed}")
    log = CommitLog(open_store(run.store_url))
    network = load_committed(run, log.commits()[-1], log.store)
    steps = recorded_steps(Path(run.run_dir))
    name = "validation_nats_per_token"
    curve = {step: created.values[name] for step, created in sorted(steps.items()) if name in created.values}
    return nats_of_model(network, held_out), curve


def train_with_trl(recipe: Path, seed: int, out: Path) -> None:
    """The same rows, model, optimizer and schedule, by TRL's SFTTrainer."""
    import datasets
    from trl import SFTConfig, SFTTrainer

    from methods_rows import tokenizer

    torch.set_num_threads(1)
    tree = yaml.safe_load(recipe.read_text())
    sizes = tree["method"]["model"]
    torch.manual_seed(derive_key(seed, "trl weights"))
    shape = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=sizes["hidden_size"], intermediate_size=sizes["intermediate_size"],
        num_hidden_layers=sizes["num_layers"], num_attention_heads=sizes["num_heads"],
        num_key_value_heads=sizes["num_kv_heads"], max_position_embeddings=sizes["max_tokens"],
        tie_word_embeddings=sizes["tie_embeddings"], pad_token_id=0, bos_token_id=1, eos_token_id=1,
    )  # fmt: skip
    model = LlamaForCausalLM(shape)
    optimizer = tree["trainer"]["optimizer"]
    config = SFTConfig(
        output_dir=str(out / "trl"), num_train_epochs=tree["trainer"]["epochs"], seed=seed, data_seed=seed,
        per_device_train_batch_size=BATCH_ROWS, learning_rate=RATE, adam_beta1=optimizer["betas"][0],
        adam_beta2=optimizer["betas"][1], weight_decay=0.01, max_grad_norm=1.0, lr_scheduler_type="cosine",
        warmup_steps=WARM_UP_STEPS, dataloader_drop_last=True,
        gradient_checkpointing=False, use_cpu=True, bf16=False, report_to="none", save_strategy="no",
        disable_tqdm=True, max_length=None,
    )  # fmt: skip
    rows = datasets.Dataset.from_list([{"input_ids": row} for row in rows_of(tree, "train")])
    trainer = SFTTrainer(
        model=model, args=config, processing_class=tokenizer(VOCABULARY), train_dataset=rows
    )  # fmt: skip
    trainer.train()
    model.save_pretrained(out)


def of_trl(folder: Path, held_out: Rows) -> float:
    return nats_of_model(CausalNetwork(PretrainedCausalConfig(type="pretrained", path=str(folder))), held_out)


def apart(ours: Sequence[float], reference: Sequence[float]) -> dict[str, float]:
    """The difference of the means, and how large the luck of seeds alone makes it, 95 times in 100 (Welch)."""
    parts = [statistics.variance(side) / len(side) for side in (ours, reference)]
    freedom = sum(parts) ** 2 / sum(part**2 / (len(ours) - 1) for part in parts)
    limit = float(student_t.ppf(0.975, freedom)) * sum(parts) ** 0.5
    return {"difference": statistics.mean(ours) - statistics.mean(reference), "seed_noise": limit}


def main() -> None:
    if TRL in sys.argv:
        _, _, recipe, seed, out = sys.argv
        train_with_trl(Path(recipe), int(seed), Path(out))
        return
    parser = options_of(__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--evaluate-every", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--out", type=Path, help="where the figures go as JSON, too")
    arguments = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    with workspace() as folder:
        figures = measured(folder, arguments)
    if arguments.out:
        arguments.out.write_text(json.dumps(figures, indent=1))
    print_result(figures)


def measured(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Everything, in nats a token."""
    tree = recipe_tree(write_dataset(folder), options.epochs, options.evaluate_every)
    (recipe := folder / "recipe.yaml").write_text(yaml.safe_dump(tree))
    training, held_out = rows_of(tree, "train"), rows_of(tree, "validation")
    print(f"{len(training)} rows of {sum(map(len, training))} tokens; held out {len(held_out)}, of other files")
    seeds = range(options.seeds)
    figures: dict[str, Any] = {}
    for order in ORDERS:
        by_token, by_row = nats_of_ngram(training, held_out, order)
        print(f"  interpolated {order}-gram: {by_token:.3f}; by row {by_row:.3f}")
        figures |= {f"ngram_{order}": by_token, f"ngram_{order}_by_row": by_row}
    with ThreadPoolExecutor(options.jobs) as jobs:
        created = [jobs.submit(train_ours, recipe, seed) for seed in seeds]
        if importlib.util.find_spec("trl") is not None:
            created += [jobs.submit(_trl_apart, recipe, seed, folder / f"trl-{seed}") for seed in seeds]
        for future in created:
            future.result()
    found = [ours(seed, held_out) for seed in seeds]
    values = [value for value, _ in found]
    for seed, (value, curve) in enumerate(found):
        print(f"  ours, seed {seed}: {value:.3f}; by row: " + ", ".join(f"{at} {of:.3f}" for at, of in curve.items()))
    figures |= {"ours": values, "curves": [curve for _, curve in found]}
    if len(created) > len(seeds):
        expected = [of_trl(folder / f"trl-{seed}", held_out) for seed in seeds]
        print("  TRL: " + ", ".join(f"{value:.3f}" for value in expected))
        figures |= {"trl": expected, **(apart(values, expected) if len(seeds) > 1 else {})}
        print(f"  apart by {figures.get('difference', 0):.4f}; seeds explain {figures.get('seed_noise', 0):.4f}")
    return figures


def _trl_apart(recipe: Path, seed: int, out: Path) -> None:
    command = [sys.executable, __file__, TRL, str(recipe), str(seed), str(out)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"TRL, seed {seed}:\n{done.stderr[-3000:]}")


if __name__ == "__main__":
    main()
