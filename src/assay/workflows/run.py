"""A run's folder and record: created once from a recipe that was checked against its dataset, and never
changed."""

import os
import secrets
import shutil
import sys
import sysconfig
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import yaml

from assay.base.clock import SystemClock
from assay.base.code_version import code_version
from assay.base.config import LoadedConfig, validated
from assay.base.errors import ConfigError, NotInstalledError
from assay.base.shown_url import refuse_secrets
from assay.base.units import number_of
from assay.data.dataset.columns import COLUMN_COMMANDS, sequences_of
from assay.data.dataset.dataset import Dataset
from assay.data.dataset.split import split_view
from assay.data.loader.config import LineLayout
from assay.data.loader.lane_shares import LaneShares
from assay.data.loader.loader import Loader
from assay.data.loader.mixing import Mixing, measure_mixing
from assay.elastic.lane_times import Share
from assay.evals.compatibility import supported_suite
from assay.evals.config import read_suite
from assay.records.commit import Commit, RunFinished
from assay.records.dataset import DatasetManifest
from assay.records.run import ClusterOf, Run
from assay.store.commit_log import CommitLog, first_problem
from assay.store.home import Home
from assay.store.known_runs import RUN_FILE
from assay.store.objects import open_store
from assay.training.model_folders import (
    check_tensors,
    check_tokenizer,
    check_vocabulary,
    checkpoint_folders,
    digests_of,
)
from assay.training.outer.meeting import Meeting, announcement, check_puts
from assay.training.recipe import Recipe, recipe_of, recipe_sha256

VALIDATION = "validation"


class RunSteps(NamedTuple):
    """Numbers of optimizer steps."""

    planned: int
    """Steps of the whole run."""
    per_epoch: int


def create_run(
    home: Home,
    recipe_values: LoadedConfig,
    *,
    world_size: int = 1,
    run_id: str | None = None,
    store_url: str | None = None,
    is_drill: bool = False,
) -> Run:
    """Check a recipe and create the run's folder with its `run.json`."""
    run = plan_run(home, recipe_values, world_size=world_size, run_id=run_id, store_url=store_url)
    run = run.model_copy(update={"is_drill": is_drill})
    save_run(home, run)
    return run


def save_run(home: Home, run: Run) -> None:
    """Create the folder of a planned run with its `run.json`. Raises `ConfigError` if the id is taken."""
    if not open_store(run.run_dir).put_if_absent(RUN_FILE, run.to_sealed_json().encode()):
        raise home.name_conflict(run.run_id)


def plan_run(
    home: Home,
    recipe_values: LoadedConfig,
    *,
    world_size: int,
    run_id: str | None,
    store_url: str | None,
    cluster_of: ClusterOf | None = None,
) -> Run:
    """Return the validated record of a new run; nothing is left behind."""
    recipe, dataset = check_recipe(recipe_values)
    check_cluster(recipe, cluster_of)
    LaneShares(recipe.loader.lanes, world_size)
    if store_url is not None:
        refuse_secrets(store_url, of="--store")
    digests = digests_of(recipe)
    check_tensors(recipe)
    recipe.method.check_services(dataset.manifest)
    stamp = datetime.fromtimestamp(SystemClock().now_s(), UTC).strftime("%m%d-%H%M%S")
    name = recipe.name if cluster_of is None else f"{recipe.name}-{cluster_of.cluster}"
    run_id = run_id or f"{name}-{stamp}-{secrets.token_hex(2)}"
    run = outline_run(home, recipe, dataset, run_id=run_id)
    store_url = absolute_store(store_url) if store_url else run.store_url
    run = run.model_copy(update={"store_url": store_url, "folders": digests, "cluster_of": cluster_of})
    if cluster_of is not None and recipe.outer is not None:
        meeting = Meeting(open_store(cluster_of.meeting_url), cluster_of.cluster, recipe.outer)
        meeting.check(announcement(run, workers=world_size))
        check_puts(meeting.store)
    return run


def outline_run(home: Home, recipe: Recipe, dataset: Dataset, *, run_id: str) -> Run:
    """Return the record of a run of a checked recipe, without digests of its initial models, which may not
    exist yet."""
    run_dir = home.run_dir(run_id)
    tree = recipe.model_dump(mode="json")
    tree["data"]["dataset"] = str(Path(recipe.data.dataset).resolve())
    if recipe.evaluation is not None:
        tree["evaluation"]["suite"] = str(Path(recipe.evaluation.suite).resolve())
    return Run(
        run_id=run_id,
        created_s=SystemClock().now_s(),
        recipe=tree,
        recipe_sha256=recipe_sha256(tree, dataset.fingerprint),
        dataset_fingerprint=dataset.fingerprint,
        code_version=code_version(),
        run_dir=str(run_dir),
        store_url=str(run_dir),
        num_steps=_num_steps(recipe, count_steps(recipe, dataset).planned),
    )


def _num_steps(recipe: Recipe, lane_steps: int) -> int:
    """Return the last step's number: each outer step counts as one more."""
    if recipe.outer is None:
        return lane_steps
    return -(-lane_steps // recipe.outer.every) * (recipe.outer.every + 1)


def check_cluster(recipe: Recipe, cluster_of: ClusterOf | None) -> None:
    """Raise `ConfigError` if a recipe for several clusters is trained on one, or the other way round."""
    if (recipe.outer is None) == (cluster_of is None):
        return
    if cluster_of is None:
        raise ConfigError(
            "the recipe trains over several clusters (outer). Name this one and the store where they meet: --cluster a "
            "--meet s3://BUCKET/FOLDER. outer=null trains on this cluster alone."
        )
    raise ConfigError(
        "--cluster: the recipe says nothing of outer steps. Add outer: {every: 25}, say (docs/outer.md), or leave "
        "--cluster and --meet out."
    )


def absolute_store(store_url: str) -> str:
    """Return the store with an absolute path, so the run can be resumed from any folder."""
    is_folder = "://" not in store_url and not store_url.startswith("memory:")
    return str(Path(store_url).resolve()) if is_folder else store_url


def check_recipe(recipe_values: LoadedConfig) -> tuple[Recipe, Dataset]:
    """Validate a recipe and open its dataset. Raises an error for the first problem."""
    recipe = validated(Recipe, recipe_values)
    dataset = Dataset.open(Path(recipe.data.dataset))
    _check_dataset(recipe, dataset)
    if recipe.evaluation is not None:
        read_suite(Path(recipe.evaluation.suite))
    for part in ("train", "validation"):
        split_view(dataset, recipe.data.split, part)
    if recipe.trainer.compile:
        _refuse_no_compiler()
    return recipe, dataset


def resolved_recipe(recipe: Recipe, origins: Mapping[str, str]) -> str:
    """Return the whole recipe as YAML, with the origin of each explicit value."""
    explicit = "".join(f"#   {key}: {origin}\n" for key, origin in sorted(origins.items()))
    whole = yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False)
    return f"{whole}# given (the rest are defaults):\n{explicit}"


def measure_order(recipe: Recipe, dataset: Dataset) -> Mixing:
    """Measure how well the recipe's order mixes its training rows."""
    return measure_mixing(split_view(dataset, recipe.data.split, "train"), recipe.loader)


def count_steps(recipe: Recipe, dataset: Dataset) -> RunSteps:
    """Return the number of steps of a run of this recipe."""
    view = split_view(dataset, recipe.data.split, "train")
    per_epoch = Loader(view, recipe.loader, ()).steps_per_epoch
    return RunSteps(recipe.trainer.num_steps(per_epoch), per_epoch)


def load_run(home: Home, run_id: str) -> Run:
    """Return a run's record. Raises `ConfigError` if its dataset has changed."""
    run = home.run(run_id)
    folder = recipe_of(run).data.dataset
    dataset = Dataset.open(Path(folder))
    if dataset.fingerprint != run.dataset_fingerprint:
        raise ConfigError(
            f"run '{run_id}' started on dataset {run.dataset_fingerprint[:12]}…, but "
            f"{folder} is now {dataset.fingerprint[:12]}…. Restore the original "
            "manifest, or start a new run."
        )
    return run


def finished_entry(log: CommitLog) -> RunFinished | None:
    """Return the final entry of a run with nothing left to train, if its last commit is intact."""
    finished, commits = log.finished(), log.known_commits()
    if finished is None or not commits or first_problem(log.store, commits[-1]) is not None:
        return None
    return finished


def check_new(recipe: Recipe, dataset: Dataset, *, changed: Collection[str] = ()) -> list[str]:
    """Raise `ConfigError` for settings that a run would end before, or a suite that does not fit; return notes.

    Only for new runs. `changed` are keys that the user set for this run: a `trainer.evaluate_every` beyond the
    end is an error if it is among them; in a recipe that was shortened, the evaluation at the end is enough.
    """
    if recipe.evaluation is not None:
        supported_suite(Path(recipe.evaluation.suite), recipe.method, owner="the recipe")
    num_steps = count_steps(recipe, dataset).planned  # without outer steps, which the schedule does not count
    longer = "or train longer (trainer.epochs, trainer.max_steps)"
    warmup_steps, evaluate_every = recipe.trainer.optimizer.schedule.warmup_steps, recipe.trainer.evaluate_every
    if warmup_steps > num_steps:
        raise ConfigError(
            f"trainer.optimizer.schedule.warmup_steps={warmup_steps:,}, but the run has "
            f"{number_of(num_steps, 'step')}: the learning rate would never reach its peak. Use a tenth of "
            "them, "
            f"{max(1, num_steps // 10):,}, {longer}."
        )
    notes = []
    if 1 < num_steps < 2 * warmup_steps:
        rises = f"the learning rate rises for most of the {num_steps:,} steps"
        notes.append(f"trainer.optimizer.schedule.warmup_steps={warmup_steps:,}: {rises}")
    if evaluate_every is None or evaluate_every <= num_steps:
        return notes
    late = f"trainer.evaluate_every={evaluate_every:,}, but the run has {number_of(num_steps, 'step')}: "
    if any("trainer.evaluate_every".startswith(key) for key in changed):
        raise ConfigError(
            f"{late}there would be no evaluation before the end. Use fewer steps, null for the end only, {longer}."
        )
    return [*notes, f"{late}it is evaluated at the end only"]


def find_commit(run: Run, log: CommitLog, step: int | None) -> Commit:
    """Return the commit of a step, or the last one. The `ConfigError` lists the existing commits."""
    commits = log.commits()
    found = [commit for commit in commits if step in (None, commit.step)]
    if not found:
        steps = ", ".join(f"{commit.step:,}" for commit in commits) or "none yet"
        which = "commit" if step is None else f"commit of step {step:,}"
        raise ConfigError(f"run '{run.run_id}' has no {which}. It has commits at steps: {steps}.")
    return found[-1]


def _check_dataset(recipe: Recipe, dataset: Dataset) -> None:
    present = dataset.manifest.columns
    for column in recipe.method.columns:
        if column not in present:
            raise ConfigError(
                f"column '{column}' (in method) is not in dataset '{dataset.manifest.name}', which has: "
                f"{', '.join(present)}."
                + (f" '{COLUMN_COMMANDS[column]}' writes it." if column in COLUMN_COMMANDS else "")
            )
    recipe.method.check_batches(recipe.loader)
    recipe.method.check_dataset(dataset.manifest)
    _check_line(recipe, dataset.manifest)
    for key, path in checkpoint_folders(recipe).items():
        check_tokenizer(dataset, path, f"{key}={path}")
    check_vocabulary(dataset, recipe)
    for key, name in recipe.method.runs.items():
        folder_of_run = recipe_of(name.run_of(key)).data.dataset
        check_tokenizer(dataset, str(Dataset.open(Path(folder_of_run)).folder), f"{key}.run={name.run}")


def _check_line(recipe: Recipe, manifest: DatasetManifest) -> None:
    """Raise `ConfigError` if a line cannot hold what a row of the dataset becomes."""
    layout, loader, longest = recipe.loader.layout, recipe.loader, int(manifest.lengths.max)
    if not isinstance(layout, LineLayout):
        return
    _, widest = recipe.method.training_sequences(loader.rows_per_lane, longest)
    row_tokens = widest // len(sequences_of(recipe.method.columns))
    is_prompt = recipe.method.completions_per_prompt is not None
    # Prompts of a lane stay in one line, so that each step has as many as the recipe says.
    tokens = max(widest, loader.rows_per_lane * longest) if is_prompt else widest
    needed = {"tokens": (layout.tokens, tokens), "row_tokens": (layout.longest_row, row_tokens)}
    for key, (size, fits) in needed.items():
        if size < fits:
            raise ConfigError(
                f"loader.layout.{key}={size}: the longest row of dataset '{manifest.name}' has {longest} tokens"
                + (", and a line holds a lane's prompts, or a prompt with its completion" if is_prompt else "")
                + (", and a line holds both sequences of a pair" if tokens > longest and not is_prompt else "")
                + f". Use loader.layout.{key}={fits} or more."
            )


def _refuse_no_compiler() -> None:
    """Raise an error if torch.compile cannot build: it generates C++ and links it with Python."""
    compiler = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
    if shutil.which(compiler) is None:
        raise NotInstalledError(
            f"trainer.compile: torch compiles C++, and '{compiler}' is not installed. Install it "
            "(or name another compiler in $CXX), or leave trainer.compile out."
        )
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if not header.is_file():
        raise NotInstalledError(
            f"trainer.compile: torch compiles extensions of Python, and {header} is missing. Install Python's "
            "headers (python3-dev), or leave trainer.compile out."
        )


def check_parallel(recipe: Recipe, parallels: Sequence[str], *, share: Share = "equal") -> None:
    """Raise `ConfigError` if the recipe needs whole weights, equal shares, or gradients not summed as a tree."""
    if recipe.outer is not None and "fsdp2" in parallels:
        raise ConfigError("--parallel fsdp2: clusters exchange whole weights (outer). Use --parallel ddp.")
    if recipe.outer is not None and share == "speed":
        raise ConfigError(
            "--share speed: lanes pass between clusters (outer), and each divides its own equally. Use --share equal."
        )
    if "fsdp2" in parallels and recipe.trainer.gradient_sum != "tree":
        raise ConfigError("--parallel fsdp2 needs trainer.gradient_sum=tree.")
    if "fsdp2" in parallels and recipe.trainer.weights.compute != "float32":
        raise ConfigError(
            f"--parallel fsdp2 shards the weights, and trainer.weights.compute={recipe.trainer.weights.compute} copies "
            "them whole. Use --parallel ddp, or leave trainer.weights out."
        )
