"""What GRPO learns from rewards alone, some seeds: `python benchmarks/learning_rewards.py [--seeds N]`.

The shipped recipes (`recipes/rl`), as they are: a small model imitates sorted digits until some of what it
draws is right, and learns the rest from whether an answer was. Of each seed, which is that of both runs: the
reward of drawn answers, over ten steps, and of held-out prompts, drawn alike, by step; and how long `assay
train` took on two workers, from its start to its end, evaluations and audit included.

Wanted: drawn answers earn at most 0.4 at first and 0.9 at last, within 3 minutes. The last line is one JSON
object.
"""

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from assay.store.home import Home
from assay.store.metrics.recorded import recorded_steps
from assay.workflows.run import load_run
from harness import CHECKOUT, assay, options_of, print_result, workspace

RECIPES = CHECKOUT / "recipes/rl"
WINDOW = 10
"""Steps whose rewards are averaged: of 32 prompts each, a single one says little."""
AT_MOST_S = 180.0
FIRST, LAST = 0.4, 0.9


class TrainingCurve(NamedTuple):
    """By one seed."""

    drawn: dict[int, float]
    """Step -> reward of drawn answers, over so many steps up to it."""
    held_out: dict[int, float]
    wall_s: float


def dataset(folder: Path, which: str, *options: str) -> None:
    created = subprocess.run(
        [sys.executable, str(RECIPES / "digits.py"), which], check=True, capture_output=True, text=True
    )
    (folder / f"{which}.jsonl").write_text(created.stdout)
    assay(
        "data",
        "build",
        str(folder / f"{which}.jsonl"),
        *options,
        "--out",
        str(folder / "datasets" / f"digits-{which}"),
    )


def train_once(folder: Path, seed: int, workers: int, changes: list[str]) -> TrainingCurve:
    """Both runs of a seed."""
    warm_up, run_id, model = f"warm-up-{seed}", f"grpo-{seed}", folder / f"model-{seed}"
    own = [f"data.dataset={folder}/datasets/digits-shown", f"seed={seed}", "--run-id", warm_up]
    assay("train", str(RECIPES / "warm_up.yaml"), *own)
    assay("runs", "export", warm_up, "--out", str(model))
    if not (folder / "datasets/digits-asked").exists():
        dataset(folder, "asked", "--format", "prompts", "--tokenizer", str(model))
    own = [
        f"data.dataset={folder}/datasets/digits-asked",
        f"method.model.path={model}",
        f"seed={seed}",
        *changes,
    ]
    began_s = time.monotonic()
    assay("train", str(RECIPES / "grpo.yaml"), *own, "--run-id", run_id, "--workers", str(workers))
    wall_s = time.monotonic() - began_s
    steps = recorded_steps(Path(load_run(Home.from_environment(), run_id).run_dir))
    rewards = [
        (step, created.values["reward"]) for step, created in sorted(steps.items()) if "reward" in created.values
    ]
    everything = max(WINDOW, len(rewards) // 8 // WINDOW * WINDOW)
    ends = [WINDOW, *range(everything, len(rewards) + 1, everything)]
    drawn = {end: statistics.mean(value for step, value in rewards if end - WINDOW < step <= end) for end in ends}
    name = "validation_reward"
    held_out = {step: created.values[name] for step, created in sorted(steps.items()) if name in created.values}
    return TrainingCurve(drawn, held_out, wall_s)


def curve(values: dict[int, float]) -> str:
    return ", ".join(f"{step} {value:.2f}" for step, value in values.items())


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("changes", nargs="*", help="of the recipe of GRPO, as for assay train")
    arguments = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    with workspace() as folder:
        dataset(folder, "shown", "--format", "chat", "--tokenizer", f"new:{vocabulary()}")
        found = [train_once(folder, seed, arguments.workers, arguments.changes) for seed in range(arguments.seeds)]
    for seed, element in enumerate(found):
        print(f"seed {seed}: drawn {curve(element.drawn)}; held out {curve(element.held_out)}; {element.wall_s:.0f} s")
    reached = all(
        next(iter(item.drawn.values())) <= FIRST and list(item.drawn.values())[-1] >= LAST and item.wall_s <= AT_MOST_S
        for item in found
    )
    print(f"from at most {FIRST} to {LAST} within {AT_MOST_S:.0f} s by every seed: {'yes' if reached else 'no'}")
    figures: dict[str, Any] = {f"seed_{seed}": element._asdict() for seed, element in enumerate(found)}
    print_result({**figures, "reached": reached})


def vocabulary() -> int:
    size: int = yaml.safe_load((RECIPES / "warm_up.yaml").read_text())["method"]["model"]["vocab_size"]
    return size


if __name__ == "__main__":
    main()
