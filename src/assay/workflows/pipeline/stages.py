"""The stages of a pipeline as runs, one for each seed, whose recipes refer to models and runs of earlier stages.

    recipe with from: sft, stage:reward --+-- when checked: outlines of models, and planned runs
                                          +-- when it is due: models/sft-s0-step70, exported from the
                                              commit; the run NAME-reward-s0

A model is exported once; the run that starts from it records the digest of its folder, as for any folder.
"""

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from assay.base.config import LoadedConfig
from assay.base.errors import AssayError, ConfigError, DamagedDataError, DataError
from assay.data.loader.lane_shares import LaneShares
from assay.decision.candidate import patched
from assay.decision.config import SuiteBenchmark
from assay.records.campaign import run_id_of
from assay.records.commit import Commit
from assay.records.exported_model import EXPORT_FILE, ModelForm
from assay.records.run import Run
from assay.store.commit_log import CommitLog
from assay.store.home import Home
from assay.store.model_folder import whole_export
from assay.store.objects import open_store
from assay.training.checkpoint.named_commit import to_come
from assay.training.recipe import Recipe, recipe_of
from assay.workflows.campaign.check import check_suite
from assay.workflows.campaign.folder import sealed_suites
from assay.workflows.campaign.train import ArmPlan, ensure_run
from assay.workflows.export.export import export_run, write_outline
from assay.workflows.pipeline.config import PREFIX, StageCommit, comparison_of, stages_named
from assay.workflows.pipeline.folder import MODELS, LoadedPipeline, OpenPipeline
from assay.workflows.run import check_new, check_recipe, count_steps, find_commit, load_run, outline_run

FolderOf = Callable[[StageCommit], Path]
StepOf = Callable[[StageCommit], int | None]


def check_stages(declared: LoadedPipeline, home: Home) -> dict[str, int]:
    """Check the recipe of every stage, before the models that it starts from exist; nothing is kept.

    Returns each stage's number of steps. A `ConfigError` names the stage.
    """
    steps: dict[str, int] = {}
    forms: dict[str, ModelForm] = {}
    recipes: dict[str, Recipe] = {}
    planned: dict[str, Run] = {}
    seed = declared.config.first_seed
    outlined = _outlined(declared)
    with TemporaryDirectory(prefix="assay-stages-") as scratch, to_come(planned):
        for stage in declared.config.stages:
            for key, commit in stages_named(stage, declared.recipes[stage.name].values):
                _check_commit(f"stage '{stage.name}': {key}", commit, recipes, forms)
            recipe_values = stage_recipe(
                declared,
                stage.name,
                seed,
                folder_of=lambda commit: Path(scratch) / commit.stage,
                step_of=lambda _: None,
            )
            run_id = run_id_of(declared.config.name, stage.name, seed)
            try:
                recipe, dataset = check_recipe(recipe_values)
                LaneShares(recipe.loader.lanes, declared.config.workers)
                num_steps = count_steps(recipe, dataset).planned
                check_new(recipe, dataset, changed=["trainer"])  # '@best' needs intermediate evaluations
                if stage.name in outlined:
                    forms[stage.name] = write_outline(recipe, dataset, Path(scratch) / stage.name)
            except AssayError as error:
                message = str(error).replace(f"{scratch}/", PREFIX)
                raise type(error)(f"stage '{stage.name}': {message}") from error
            steps[stage.name], recipes[stage.name] = num_steps, recipe
            planned[run_id] = outline_run(home, recipe, dataset, run_id=run_id)
        _check_comparison(declared, recipes, forms)  # while the outlines of the models are there
    return steps


def _check_comparison(declared: LoadedPipeline, recipes: dict[str, Recipe], forms: dict[str, ModelForm]) -> None:
    compared = comparison_of(declared.config, declared.file.name)
    if compared is None:
        return
    if wordless := [text for text in declared.config.compared() if forms[text] != "language_model"]:
        raise ConfigError(f"compare: stage '{wordless[0]}' generates no text, so benchmarks cannot evaluate it.")
    sealed_suites(compared, base_dir=declared.file.parent)
    for benchmark in compared.benchmarks:
        for name in declared.config.compared():
            if isinstance(benchmark, SuiteBenchmark) and benchmark.suite is not None:
                path, method = declared.file.parent / benchmark.suite, recipes[name].method
                check_suite(benchmark, path, method, owner=f"stage '{name}'")


def _outlined(declared: LoadedPipeline) -> set[str]:
    """Return the stages whose models are exported: those that others start from, compared ones, and the last."""
    named = [
        commit.stage
        for stage in declared.config.stages
        for key, commit in stages_named(stage, declared.recipes[stage.name].values)
        if not _is_run(key)
    ]
    compared = declared.config.compared() if declared.config.compare else ()
    return {*named, *compared, declared.config.stages[-1].name}


def _is_run(key: str) -> bool:
    return key.rpartition(".")[2] == "run"


def _check_commit(where: str, commit: StageCommit, recipes: dict[str, Recipe], forms: dict[str, ModelForm]) -> None:
    if commit.stage not in recipes:
        raise ConfigError(
            f"{where} names '{commit.stage}', which is not an earlier stage. Earlier stages: "
            f"{', '.join(recipes) or 'none'}."
        )
    if not _is_run(where) and forms[commit.stage] != "language_model":
        raise ConfigError(
            f"{where} names '{commit.stage}', whose model is a {forms[commit.stage].replace('_', ' ')}: a "
            "stage starts from a language model. Name a reward model as 'run: stage:NAME'."
        )
    recipe = recipes[commit.stage]
    if commit.is_best and (recipe.trainer.evaluate_every is None or not recipe.retention.keep_best):
        raise ConfigError(
            f"{where}: only the last commit of stage '{commit.stage}' is evaluated and kept. Set "
            "trainer.evaluate_every and retention.keep_best in its recipe, or leave @best out."
        )


def stage_recipe(
    declared: LoadedPipeline, name: str, seed: int, *, folder_of: FolderOf, step_of: StepOf
) -> LoadedConfig:
    """Return the recipe of a stage with a seed, with folders and runs in place of earlier stages."""
    stage, recipe = declared.stage(name), declared.recipes[name]
    values, origins = deepcopy(recipe.values), dict(recipe.origins)

    def put_in(tree: Any, key: str = "") -> Any:
        if isinstance(tree, list):
            return [put_in(item) for item in tree]
        if isinstance(tree, dict):
            found = {name: put_in(commit, name) for name, commit in tree.items()}
            if (run := _commit_in(tree.get("run"))) is not None and (step := step_of(run)) is not None:
                found["step"] = step
            return found
        if (commit := _commit_in(tree)) is None:
            return tree
        if key == "run":
            return run_id_of(declared.config.name, commit.stage, seed)
        return str(folder_of(commit))

    values = put_in(values)
    method = values.setdefault("method", {})
    if stage.from_ is not None and isinstance(method, dict):
        model = method.get("model")
        preserved = {key: model[key] for key in ("lora", "checkpoint_activations") if key in model} if model else {}
        folder = folder_of(StageCommit.named(stage.from_))
        method["model"] = {**preserved, "type": "pretrained", "path": str(folder)}
        origins["method.model.path"] = f"{declared.file}, stage {name}: from"
    return patched(LoadedConfig(values, origins), {}, arm=name, seed=seed)


def _commit_in(value: Any) -> StageCommit | None:
    return StageCommit.named(value) if isinstance(value, str) and value.startswith(PREFIX) else None


def stage_plan(pipeline: OpenPipeline) -> ArmPlan:
    """Return the runs of a pipeline."""
    config = pipeline.declared.config
    return ArmPlan(
        home=pipeline.home,
        owner="pipeline",
        name=config.name,
        names=tuple(stage.name for stage in config.stages),
        seeds=config.seed_numbers,
        workers=config.workers,
        budget_device_hours=config.budget_device_hours,
        run_of=partial(_stage_run, pipeline),
    )


def _stage_run(pipeline: OpenPipeline, name: str, seed: int) -> Run:
    """Return the run's record, created if needed; the model that it starts from is exported first."""
    declared, pipeline_name = pipeline.declared, pipeline.declared.config.name
    recipe = stage_recipe(
        declared,
        name,
        seed,
        folder_of=lambda commit: stage_model(pipeline, commit, seed),
        step_of=lambda commit: _commit_of(pipeline, commit, seed)[1].step if commit.is_best else None,
    )
    of = f"stage '{name}' of pipeline '{pipeline_name}'"
    run_id = run_id_of(pipeline_name, name, seed)
    return ensure_run(pipeline.home, recipe, run_id=run_id, workers=declared.config.workers, of=of, owner="pipeline")


def stage_model(pipeline: OpenPipeline, commit: StageCommit, seed: int) -> Path:
    """Return the folder of a stage's model, exported if needed."""
    run, found = _commit_of(pipeline, commit, seed)
    folder = (pipeline.folder / MODELS / f"{commit.stage}-s{seed}-step{found.step}").resolve()
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            export_run(
                pipeline.home,
                run.run_id,
                step=found.step,
                to=folder,
                tokenizer=None,
                adapters="merged",
                progress=lambda *_: None,
            )
        except (ConfigError, OSError):
            if not folder.is_dir():  # otherwise another process exported it
                raise
    try:
        exported = whole_export(folder)
    except (DamagedDataError, DataError) as error:
        raise DamagedDataError(f"{error} Remove {folder}; it is then exported again.") from error
    if exported is None or exported.weights_digest != found.weights_digest:
        raise ConfigError(
            f"{folder}: its {EXPORT_FILE} names other weights than run '{run.run_id}' has at step {found.step} "
            f"({found.weights_digest[:12]}…). Remove the folder; it is then exported again."
        )
    return folder


def _commit_of(pipeline: OpenPipeline, commit: StageCommit, seed: int) -> tuple[Run, Commit]:
    run = load_run(pipeline.home, run_id_of(pipeline.declared.config.name, commit.stage, seed))
    log = CommitLog(open_store(run.store_url))
    if log.finished() is None:
        raise ConfigError(f"run '{run.run_id}' is not finished, so no stage can start from it yet.")
    measured = [item for item in log.commits() if item.metric is not None]
    if not commit.is_best or not measured:
        return run, find_commit(run, log, None)
    sign = 1 if recipe_of(run).method.predictions.metric.higher_is_better else -1
    return run, max(measured, key=lambda commit: sign * (commit.metric or 0.0))
