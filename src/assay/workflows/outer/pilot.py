"""The pilot of `assay train pilot RECIPE`: short runs of the recipe with several outer optimizers.

All clusters run on this machine, as processes with a home of their own in a temporary folder, and meet there. Outer
steps do not depend on where clusters are, so the losses are those of real clusters.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from assay.base.config import read_config_file, validated
from assay.base.errors import ConfigError, TrainingError
from assay.data.loader.config import LoaderConfig
from assay.statistics.predictions import EVALUATION_FILE, load_evaluation
from assay.store.home import Home
from assay.training.outer.pilot import CANDIDATES, OuterProposal, PilotRun, least_outer_steps, optimizer_text, propose
from assay.training.recipe import Recipe

SEEDS = (0, 1, 2)
DEADLINE_S = 3600.0
"""Long enough that no cluster is ever late: a pilot compares optimizers, not machines."""


def run_pilot(
    recipe_file: Path, overrides: Sequence[str], *, steps: int | None, progress: Callable[[str], None]
) -> OuterProposal:
    """Train all candidates with `SEEDS` for some steps (by default, until the largest momentum has settled).

    Synchronous training and one cluster alone are trained for comparison. Raises `ConfigError` for a recipe without
    outer steps, and `TrainingError` if a run fails.
    """
    recipe = validated(Recipe, read_config_file(recipe_file, overrides))
    if recipe.outer is None:
        raise ConfigError("the recipe says nothing of outer steps. Add outer: {every: 25}, say.")
    steps = steps or recipe.outer.every * max(map(least_outer_steps, CANDIDATES))
    lengths = [f"trainer.max_steps={steps}", f"trainer.epochs={max(recipe.trainer.epochs, steps)}"]

    def losses(name: str, changes: Sequence[str], clusters: int) -> tuple[float, ...]:
        arguments = [*overrides, *lengths, *changes]
        found = tuple(held_out_loss(recipe_file, [*arguments, f"seed={seed}"], clusters=clusters) for seed in SEEDS)
        progress(f"{name}: {', '.join(f'{loss:.4f}' for loss in found)}")
        return found

    losses("synchronous training", ["outer=null"], 0)
    losses("one cluster alone", alone(recipe.loader, clusters=recipe.outer.clusters), 0)
    runs = []
    for optimizer in CANDIDATES:
        update = f"outer.optimizer={json.dumps(optimizer.model_dump(mode='json'))}"
        runs.append(PilotRun(optimizer, losses(optimizer_text(optimizer), [update], recipe.outer.clusters)))
    return propose(runs)


def alone(loader: LoaderConfig, *, clusters: int) -> list[str]:
    """Return the overrides with which one of several clusters trains its share of each step's rows by itself."""
    rows = loader.global_batch_size // clusters
    lanes = min(loader.lanes, rows & -rows)  # a power of two that divides the rows
    return ["outer=null", f"loader.lanes={lanes}", f"loader.global_batch_size={rows}"]


def held_out_loss(recipe_file: Path, overrides: Sequence[str], *, clusters: int) -> float:
    """Return the held-out loss of a recipe that is trained to its end on this machine; keep nothing else.

    `clusters`: 0 trains without outer steps. Raises `TrainingError` if a cluster fails.
    """
    changes = ["trainer.evaluate_every=null", "evaluation=null"]
    if clusters:
        changes += [f"outer.clusters={clusters}", f"outer.deadline_s={DEADLINE_S}"]
    command = [sys.executable, "-m", "assay", "train", str(recipe_file), *overrides, *changes]
    with tempfile.TemporaryDirectory(prefix="assay-pilot-") as folder:
        names = [f"cluster-{number}" for number in range(max(1, clusters))]
        processes = []
        for name in names:
            options = ["--run-id", name, *(("--cluster", name, "--meet", f"{folder}/meet") if clusters else ())]
            environment = {**os.environ, **Home.at(Path(folder, name), None).environment()}
            with Path(folder, f"{name}.log").open("wb") as log:
                processes.append(subprocess.Popen([*command, *options], env=environment, stdout=log, stderr=log))
        try:
            while None in (codes := [process.poll() for process in processes]) and not any(codes):
                time.sleep(0.1)
            if failed := next((name for name, code in zip(names, codes, strict=True) if code), None):
                last = Path(folder, f"{failed}.log").read_text(errors="replace").strip().rpartition("\n")[2]
                raise TrainingError(f"{failed}, with {' '.join(overrides)}: {last}")
        finally:
            for process in processes:
                process.terminate()
                process.wait()
        (found,) = Path(folder, names[0], names[0]).glob(f"evaluations/*/{EVALUATION_FILE}")
        loss = load_evaluation(found.parent).loss
        if loss is None or loss.estimate is None:
            raise ConfigError("the method's evaluation has no loss, so optimizers cannot be compared by it.")
        return loss.estimate.value
