"""Scores preference pairs with a reference model once, so that DPO trains without a second model.

    dataset --(a row group at a time)--> reference --> the same rows with two more columns --> shards, indexed

A shard appears whole or not at all, under a name derived from its rows and the reference's weights, so an
interrupted command continues where it stopped. The manifest, written last, names the source dataset and the
weights.
"""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from assay.base.digest import sha256_of_json
from assay.base.errors import ConfigError
from assay.base.installed import PREFIX
from assay.data.dataset.build import SHARDS_FOLDER, check_foreign_shards, finished_shards
from assay.data.dataset.columns import LABEL, REFERENCE_LOGPROBS
from assay.data.dataset.dataset import Dataset
from assay.data.dataset.formats.template import TEMPLATE_FILE
from assay.data.dataset.index import TokenizerInfo, index_dataset
from assay.data.dataset.manifest_file import MANIFEST_FILE
from assay.data.dataset.tokens import SETTINGS_FILE, TOKENIZER_FILE
from assay.evals.commit_model import load_committed
from assay.records.dataset import DatasetManifest, ReferenceScores
from assay.store.commit_log import CommitLog
from assay.store.home import Home
from assay.store.known_runs import RUN_FILE
from assay.store.objects import open_store
from assay.training.model_folders import check_template, check_tokenizer
from assay.training.recipe import recipe_of
from assay.training.reference_model import ReferenceModel
from assay.workflows.run import find_commit, load_run

Progress = Callable[[int, int], None]
"""Called with the numbers of finished and of all row groups."""


def is_folder(name: str) -> bool:
    """Return whether `name` is a checkpoint folder, not a run."""
    return name.startswith(PREFIX) or (Path(name).is_dir() and not (Path(name) / RUN_FILE).is_file())


def folder_reference(path: str, dataset: Dataset) -> ReferenceModel:
    """Return the model of a checkpoint folder, which must have the dataset's tokenizer and template."""
    _check_pairs(dataset)
    check_tokenizer(dataset, path, f"--reference {path}")
    check_template(dataset, path, f"--reference {path}")
    return ReferenceModel.from_folder(path)


def run_reference(home: Home, run_id: str, step: int | None, dataset: Dataset) -> ReferenceModel:
    """Return the model of a run's commit, by default the last one."""
    _check_pairs(dataset)
    run = load_run(home, run_id)
    log = CommitLog(open_store(run.store_url))
    commit = find_commit(run, log, step)
    name = f"{run_id}@{commit.step}"
    folder_of_run = str(Dataset.open(Path(recipe_of(run).data.dataset)).folder)
    check_tokenizer(dataset, folder_of_run, f"--reference {name}")
    check_template(dataset, folder_of_run, f"--reference {name}")
    return ReferenceModel(load_committed(run, commit, log.store), name=name)


def score_pairs(
    dataset: Dataset,
    reference: ReferenceModel,
    out: Path,
    *,
    name: str | None = None,
    tokens_at_once: int,
    progress: Progress,
    replacing: Callable[[], None] = lambda: None,
) -> DatasetManifest:
    """Write the dataset `out`: the rows of `dataset` with the reference's log-probabilities.

    `replacing` is called before other files in `out` are replaced, and may raise.
    """
    manifest = dataset.manifest
    reference.check_rows(manifest)
    scored = ReferenceScores(
        source=manifest.name,
        source_fingerprint=dataset.fingerprint,
        reference=reference.name,
        weights_digest=reference.digest,
    )
    folder = out / SHARDS_FOLDER
    _check_output(out, scored)
    check_foreign_shards(folder)
    names = [
        f"part-{number:05d}-{sha256_of_json([shard.sha256, shard.path, reference.digest, tokens_at_once])[:12]}.parquet"
        for number, shard in enumerate(manifest.shards)
    ]
    existing, done = finished_shards(folder, names, replacing), 0
    for number, file in enumerate(names):
        groups = (dataset.groups.shard_index == number).nonzero()[0].tolist()
        if file not in existing:
            with (
                open_store(str(folder)).open_writer(file) as data,
                pq.ParquetWriter(data, _schema(dataset, groups[0]), compression="zstd") as writer,
            ):
                for index, group in enumerate(groups):
                    progress(done + index, len(dataset.groups))
                    writer.write_table(_scored(dataset, group, reference, tokens_at_once))
        done += len(groups)
        progress(done, len(dataset.groups))
    _keep_files(dataset, out)
    return index_dataset(
        str(folder),
        out,
        name=name or out.resolve().name,
        needs_label=LABEL in manifest.columns,
        tokenizer_info=TokenizerInfo.of(manifest),
        build=manifest.build,
        scored=scored,
        replacing=replacing,
    )


def _scored(dataset: Dataset, group: int, reference: ReferenceModel, tokens_at_once: int) -> pa.Table:
    table = dataset.read_row_group(group, list(dataset.manifest.columns))
    if not len(table):
        return _empty(table)
    logprobs = reference.of_pairs(table, tokens_at_once=tokens_at_once)
    for column, values in zip(REFERENCE_LOGPROBS, logprobs, strict=True):
        table = table.append_column(column, pa.array(values))
    return table


def _schema(dataset: Dataset, group: int) -> pa.Schema:
    return _empty(dataset.read_row_group(group, list(dataset.manifest.columns)).slice(0, 0)).schema


def _empty(table: pa.Table) -> pa.Table:
    for column in REFERENCE_LOGPROBS:
        table = table.append_column(column, pa.array([], pa.float32()))
    return table


def _keep_files(dataset: Dataset, out: Path) -> None:
    store = open_store(str(out))
    for name in (TOKENIZER_FILE, SETTINGS_FILE, TEMPLATE_FILE):
        if (path := dataset.folder / name).is_file():
            store.put(name, path.read_bytes())


def _check_pairs(dataset: Dataset) -> None:
    manifest = dataset.manifest
    if manifest.format != "pairs":
        raise ConfigError(
            f"dataset '{manifest.name}' holds rows of format {manifest.format}: a reference "
            "scores pairs (chosen and rejected). Build them with 'assay data build --format pairs'."
        )
    if existing := [name for name in REFERENCE_LOGPROBS if name in manifest.columns]:
        scored = manifest.scored
        source, where = (f" (what {scored.reference} said)", f", {scored.source},") if scored else ("", "")
        raise ConfigError(
            f"dataset '{manifest.name}' has the column {existing[0]} already{source}. Score its source dataset{where} "
            f"into another folder."
        )


def _check_output(out: Path, scored: ReferenceScores) -> None:
    file = out / MANIFEST_FILE
    if not file.is_file():
        return
    existing = DatasetManifest.from_json(file.read_bytes(), source=file)
    if existing.scored != scored:
        raise ConfigError(
            f"--out {out}: the folder contains another dataset, '{existing.name}'. Choose another folder."
        )
