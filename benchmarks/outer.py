"""What training over clusters costs in held-out loss: `python benchmarks/outer.py [--only STUDY ...]`.

A causal model of 227,000 weights learns signatures and docstrings of this machine's standard library, whole files held
out, by `assay train`. Each cluster is a command of its own; all of a run are on this machine, where they meet after
every N steps. One cluster alone trains its share of each step's rows, for as many steps. All others train the same rows
in the same steps, from the same weights in each seed, so their differences to synchronous training are paired. Trained
weights are those that a synchronous run ends with.

Prints one table a study: held-out nats a row, and the differences to synchronous training and to one cluster alone,
with their intervals of 95% over the seeds. `--folder` keeps data, weights and results, so that a stopped study
continues. The last line is one JSON object.
"""

import json
import math
import os
import statistics
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import yaml
from scipy.stats import t as student_t

from assay.data.loader.config import LoaderConfig
from assay.workflows.outer.pilot import alone, held_out_loss
from harness import CHECKOUT, Target, assay, options_of, print_result, workspace
from learning import recipe_tree, write_dataset

LANES, BATCH, STEPS, RATE = 8, 48, 300, 0.006
RESULTS = "results.jsonl"
PUBLISHED = "outer.optimizer={type: nesterov, rate: 0.7, momentum: 0.9}"
MILD = "outer.optimizer={type: nesterov, rate: 0.8, momentum: 0.5}"
FLOAT32 = "outer.bits=32"
SMALL_BATCHES = ("trainer.optimizer.learning_rate=0.008", "trainer.optimizer.betas=[0.9,0.99]")
"""Suit clusters of a few rows better than the recipe's."""
LOW, HIGH = (f"trainer.optimizer.learning_rate={factor * RATE}" for factor in (0.5, 2))


@dataclass(frozen=True)
class Setting:
    """One way to train."""

    clusters: int = 0
    """Clusters that meet; 0: no outer steps."""
    every: int = 25
    share: int = 1
    """One cluster alone has 1 / share of each step's rows."""
    is_trained: bool = False
    """Begins with trained weights."""
    outer: tuple[str, ...] = ()
    """Other overrides of outer steps: by default it averages at 4 bits."""
    inner: tuple[str, ...] = ()
    """Overrides of the clusters' own training."""

    @property
    def name(self) -> str:
        """Return the setting in words."""
        way = f"{self.clusters} clusters, every {self.every}" if self.clusters else "synchronous"
        if self.share > 1:
            way = f"one cluster alone, 1/{self.share} of the rows"
        return "; ".join([way, *self.outer, *self.inner])

    @property
    def reference(self) -> "Setting":
        """Return synchronous training of the same rows, from the same weights."""
        return Setting(is_trained=self.is_trained, inner=self.inner)

    @property
    def alone(self) -> "Setting":
        """Return one of its clusters alone, from the same weights."""
        return replace(self.reference, share=self.clusters)

    def overrides(self, seed: int, folder: Path) -> list[str]:
        """Return the overrides of the study's recipe."""
        found = [f"seed={seed}", f"trainer.max_steps={STEPS}", *self.inner]
        if self.clusters:
            found += [f"outer.every={self.every}", *self.outer]
        if self.share > 1:
            found += alone(LoaderConfig(lanes=LANES, global_batch_size=BATCH), clusters=self.share)
        if self.is_trained:
            found.append(f"method.model={{type: pretrained, path: {trained_weights(seed, folder)}}}")
        return found

    def loss(self, seed: int, folder: Path) -> float:
        """Train with a seed; return the held-out loss."""
        return held_out_loss(folder / "recipe.yaml", self.overrides(seed, folder), clusters=self.clusters)


TWO, THREE = Setting(clusters=2), Setting(clusters=3)
ALONE = (Setting(share=2), Setting(share=3))


def trained(*settings: Setting) -> tuple[Setting, ...]:
    """Return settings with trained weights."""
    return tuple(replace(setting, is_trained=True) for setting in settings)


CLUSTERS = (Setting(), TWO, THREE, *ALONE)
RATES = (Setting(), TWO, ALONE[0])
STUDIES = {
    "random weights": CLUSTERS,
    "trained weights": trained(*CLUSTERS),
    "every": tuple(replace(setting, every=every) for setting in (TWO, THREE) for every in (10, 5)),
    "limit": tuple(
        replace(setting, inner=SMALL_BATCHES)
        for setting in (Setting(), replace(THREE, every=1), replace(THREE, every=10), THREE, ALONE[1])
    ),
    "rates": tuple(replace(setting, inner=(rate,)) for rate in (LOW, HIGH) for setting in RATES),
    "updates": (
        replace(TWO, outer=(FLOAT32,)),
        *(
            update
            for setting in (TWO, *trained(TWO))
            for update in (replace(setting, outer=(MILD,)), replace(setting, outer=(PUBLISHED,)))
        ),
    ),
}
DEFAULT = ("random weights", "trained weights")


def prepare(folder: Path, seeds: int) -> None:
    """Write dataset, recipe and trained weights, unless they are there."""
    if not (folder / "recipe.yaml").exists():
        tree = recipe_tree(write_dataset(folder), epochs=STEPS, evaluate_every=1)
        tree["loader"] |= {"lanes": LANES, "global_batch_size": BATCH, "layout": {"type": "bucketed", "jitter": 0.1}}
        tree["trainer"] |= {"evaluate_every": None, "commit_every": STEPS}
        schedule = {"type": "cosine", "warmup_steps": 20}
        tree["trainer"]["optimizer"] |= {"learning_rate": RATE, "schedule": schedule}
        del tree["retention"]["keep_best"]
        (folder / "recipe.yaml").write_text(yaml.safe_dump(tree))
    for seed in range(seeds):
        if not (weights := trained_weights(seed, folder)).exists():
            options = [f"seed={100 + seed}", f"trainer.max_steps={STEPS}", "--run-id", weights.name]
            assay("train", str(folder / "recipe.yaml"), *options)
            assay("runs", "export", weights.name, "--out", str(weights))


def trained_weights(seed: int, folder: Path) -> Path:
    """Return the folder of the weights that a seed begins with."""
    return folder / f"trained-{seed}"


Losses = Mapping[Setting, Sequence[float]]


def measured(settings: Sequence[Setting], seeds: int, folder: Path, *, jobs: int) -> Losses:
    """Return the losses of each setting by seed, from the folder's results where they have them."""
    results = folder / RESULTS
    lines = results.read_text().splitlines() if results.exists() else []
    found = {line["key"]: line["loss"] for line in map(json.loads, lines)}

    def measure(setting: Setting, seed: int) -> None:
        loss = setting.loss(seed, folder)
        print(f"seed {seed}, {setting.name}{', trained weights' * setting.is_trained}: {loss:.4f}", flush=True)
        found[key_of(setting, seed)] = loss
        with results.open("a") as file:
            file.write(json.dumps({"key": key_of(setting, seed), "loss": loss}) + "\n")

    with ThreadPoolExecutor(jobs) as pool:
        missing = [(setting, seed) for seed in range(seeds) for setting in settings]
        started = [pool.submit(measure, *item) for item in missing if key_of(*item) not in found]
        for future in started:
            future.result()
    return {setting: [found[key_of(setting, seed)] for seed in range(seeds)] for setting in settings}


def key_of(setting: Setting, seed: int) -> str:
    return f"{setting!r} seed {seed}"


class Difference(NamedTuple):
    """Of a setting's losses to those of another one."""

    mean: float
    """Over the seeds, of the relative difference."""
    half_width: float
    """Of its interval of 95%."""

    def __str__(self) -> str:
        return f"{self.mean:+.1%} ± {self.half_width:.1%}"


def compared(losses: Sequence[float], reference: Sequence[float]) -> Difference:
    """Compare the losses of a setting with those of another one with the same seeds."""
    differences = [own / other - 1 for own, other in zip(losses, reference, strict=True)]
    half_width = math.inf
    if len(differences) > 1:
        error = statistics.stdev(differences) / len(differences) ** 0.5
        half_width = float(student_t.ppf(0.975, len(differences) - 1)) * error
    return Difference(statistics.mean(differences), half_width)


def print_study(title: str, settings: Sequence[Setting], losses: Losses) -> None:
    """Print a table with the differences of each setting to synchronous training and to one cluster alone."""
    print(f"\n{title:<90}{'nats':>7}{'to synchronous':>18}{'to one alone':>18}")
    for setting in settings:
        name = f"{setting.name}{', trained weights' * setting.is_trained}"
        others = [setting.reference, *([setting.alone] if setting.clusters else [])]
        columns = [f"{compared(losses[setting], losses[other])!s:>18}" for other in others if other in losses]
        print(f"{name:<90}{statistics.mean(losses[setting]):>7.4f}{''.join(columns)}")


def main() -> None:
    """Train what is missing, and print."""
    parser = options_of(__doc__)
    parser.add_argument("--only", nargs="+", choices=list(STUDIES), default=DEFAULT, help="studies")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="runs at the same time")
    parser.add_argument("--folder", type=Path, help="keeps data and results")
    options = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": str(CHECKOUT / "src")}
    studies = {name: STUDIES[name] for name in options.only}
    settings = dict.fromkeys(setting for study in studies.values() for setting in study)
    settings |= dict.fromkeys(setting.reference for setting in list(settings))
    with workspace() as temporary:
        folder = (options.folder or temporary).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        prepare(folder, options.seeds)
        losses = measured(list(settings), options.seeds, folder, jobs=options.jobs)
    for title, study in studies.items():
        print_study(title, study, losses)
    figures = {}
    for setting in (TWO, THREE, *trained(TWO, THREE)):
        if setting in losses:
            name = f"{'trained' if setting.is_trained else 'random'}_{setting.clusters}"
            figures[name] = compared(losses[setting], losses[setting.reference]).mean
    print_result(figures, [Target(name, 0.03, at_most=True) for name in figures])


if __name__ == "__main__":
    main()
