"""The pilot of `assay train pilot RECIPE`: short runs of the recipe with several outer optimizers.

All clusters run on this machine, as processes with a home of their own in a temporary folder, and meet there. Outer
steps do not depend on where clusters are, so the losses are those of real clusters.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from assay.base.config import read_config_file, validated
from assay.base.errors import ConfigError, TrainingError
from assay.statistics.predictions import EVALUATION_FILE, load_evaluation
from assay.store.home import Home
from assay.training.outer.config import OuterOptimizerConfig
from assay.training.outer.pilot import CANDIDATES, OuterProposal, PilotRun, least_outer_steps, optimizer_text, propose
from assay.training.recipe import Recipe

SEEDS = (0, 1, 2)
DEADLINE_S = 3600.0
"""Long enough that no cluster is ever late: a pilot compares optimizers, not machines."""


def run_pilot(
    recipe_file: Path, overrides: Sequence[str], *, steps: int | None, progress: Callable[[str], None]
) -> OuterProposal:
    """Train all candidates with `SEEDS` for some steps (by default, until the largest momentum has settled).

    Raises `ConfigError` for a recipe without outer steps, and `TrainingError` if a run fails.
    """
    recipe = validated(Recipe, read_config_file(recipe_file, overrides))
    if recipe.outer is None:
        raise ConfigError("the recipe says nothing of outer steps. Add outer: {every: 25}, say.")
    steps = steps or recipe.outer.every * max(map(least_outer_steps, CANDIDATES))
    runs = []
    for optimizer in CANDIDATES:
        losses = tuple(_loss(recipe_file, overrides, recipe, optimizer, steps=steps, seed=seed) for seed in SEEDS)
        runs.append(PilotRun(optimizer, losses))
        progress(f"{optimizer_text(optimizer)}: {', '.join(f'{loss:.4f}' for loss in losses)}")
    return propose(runs)


def _loss(
    recipe_file: Path,
    overrides: Sequence[str],
    recipe: Recipe,
    optimizer: OuterOptimizerConfig,
    *,
    steps: int,
    seed: int,
) -> float:
    """Return the held-out loss after some steps with an outer optimizer."""
    assert recipe.outer is not None
    changes = {
        "outer.optimizer": json.dumps(optimizer.model_dump(mode="json")),
        "outer.deadline_s": DEADLINE_S,
        "trainer.max_steps": steps,
        "trainer.epochs": max(recipe.trainer.epochs, steps),
        "trainer.evaluate_every": "null",
        "evaluation": "null",
        "seed": seed,
    }
    with tempfile.TemporaryDirectory(prefix="assay-pilot-") as folder:
        clusters = [f"cluster-{number}" for number in range(recipe.outer.clusters)]
        processes = []
        for cluster in clusters:
            command = [sys.executable, "-m", "assay", "train", str(recipe_file), *overrides]
            command += [f"{key}={value}" for key, value in changes.items()]
            command += ["--cluster", cluster, "--meet", f"{folder}/meet", "--run-id", cluster]
            environment = {**os.environ, **Home.at(Path(folder, cluster), None).environment()}
            with Path(folder, f"{cluster}.log").open("wb") as log:
                processes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
        try:
            for cluster, process in zip(clusters, processes, strict=True):
                if process.wait():
                    last = Path(folder, f"{cluster}.log").read_text(errors="replace").strip().rpartition("\n")[2]
                    raise TrainingError(f"the pilot with {optimizer_text(optimizer)}, seed {seed}: {last}")
        finally:
            for process in processes:
                process.terminate()
                process.wait()
        (found,) = Path(folder, clusters[0], clusters[0]).glob(f"evaluations/*/{EVALUATION_FILE}")
        loss = load_evaluation(found.parent).loss
        if loss is None or loss.estimate is None:
            raise ConfigError("the method's evaluation has no loss, so optimizers cannot be compared by it.")
        return loss.estimate.value
