"""Exports a commit's weights to a folder that other tools load, with a model card.

    commit -> verified, read -> FOLDER/model.safetensors, config.json, a module where transformers has no class
    dataset's tokenizer ------> FOLDER/tokenizer.json, tokenizer_config.json, chat_template.jinja
    records of the run -------> FOLDER/README.md (the model card), assay.json

The folder appears whole or not at all. It contains no paths of this machine.
"""

import json
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow.compute as pc

from assay.base.clock import SystemClock
from assay.base.code_version import code_version
from assay.base.digest import sha256_of_bytes
from assay.base.errors import ConfigError, no_room, unwritten
from assay.data.dataset.checkpoint_tokens import dataset_end_ids, sample_texts
from assay.data.dataset.columns import TOKENS, sequences_of
from assay.data.dataset.dataset import Dataset
from assay.data.dataset.formats.template import TEMPLATE_FILE
from assay.data.dataset.tokens import (
    SETTINGS_FILE,
    TOKENIZER_FILE,
    KnownTokenizer,
    load_tokenizer,
    special_tokens,
    tokenizer_of,
    tokenizer_settings,
)
from assay.records.commit import Commit, FileDigest
from assay.records.exported_model import EXPORT_FILE, ExportedModel, ModelForm
from assay.records.run import Run
from assay.reporting.documents.model_card import ModelFacts, model_card
from assay.reporting.views.warnings import warning_text
from assay.store.attempts import saved_attempts
from assay.store.commit_log import CommitLog
from assay.store.home import Home
from assay.store.objects import open_store
from assay.store.run_results import saved_audit
from assay.training.methods.registry import exportable_method
from assay.training.recipe import Recipe, recipe_of
from assay.workflows.export.export_warnings import evaluation_of_commit, warnings_of_commit
from assay.workflows.run import find_commit, load_run

if TYPE_CHECKING:
    from assay.models.exporting import Adapters

NAME_IT = "Name it: --tokenizer FILE."
BUILD_IT = "Build the dataset from texts (assay data build), which keeps it there."
_PADDING = ("[PAD]", "<pad>", "<|pad|>", "<|endoftext|>")
Progress = Callable[[int, int], None]
_PARTS = 4


class Exported(NamedTuple):
    """An exported folder and its record."""

    folder: Path
    record: ExportedModel


def export_run(
    home: Home,
    run_id: str,
    *,
    step: int | None,
    to: Path | None,
    tokenizer: Path | None,
    adapters: "Adapters",
    progress: Progress,
    is_forced: bool = False,
) -> Exported:
    """Write a commit's model (by default the last one's) to a new folder, or with `is_forced` over an earlier
    export."""
    run = load_run(home, run_id)
    recipe, log = recipe_of(run), CommitLog(open_store(run.store_url))
    commit = find_commit(run, log, step)
    to = to or Path(f"{run.run_id}-step{commit.step}")
    check_new_export(to, is_forced=is_forced)
    dataset = Dataset.open(Path(recipe.data.dataset))
    known = tokenizer_of(dataset.folder, dataset.manifest, tokenizer, NAME_IT)
    from assay.evals.commit_model import load_committed  # imports torch, after the checks
    from assay.models.exporting import ExportOptions, keep_tokenization
    from assay.models.lora import base_sha256

    method = exportable_method(recipe.method)
    tokenizer_files = _tokenizer_files(known, dataset, recipe, method.form)
    progress(1, _PARTS)
    model = load_committed(run, commit, log.store)
    progress(2, _PARTS)
    columns = _columns_read(recipe, dataset) if method.form == "classifier" else {}
    with new_export(to, is_forced=is_forced) as unfinished:
        base = base_sha256(model) if adapters == "apart" else None
        method.save_exported(
            model, unfinished, ExportOptions(tokenizer_files.padding, tokenizer_files.ends, adapters, columns)
        )
        for name, data in tokenizer_files.files.items():
            (unfinished / name).write_bytes(data)
        keep_tokenization(unfinished, load_tokenizer(unfinished), sample_texts(dataset, known.path))
        progress(3, _PARTS)
        exported = _record(run, commit, dataset, known, form=method.form).model_copy(
            update={"columns": columns, "files": file_digests(unfinished), "base_sha256": base}
        )
        (unfinished / "README.md").write_text(_card(run, dataset, commit, exported), encoding="utf-8")
        (unfinished / EXPORT_FILE).write_text(exported.to_sealed_json() + "\n", encoding="utf-8")
    progress(_PARTS, _PARTS)
    return Exported(to, exported)


def check_new_export(to: Path, *, is_forced: bool) -> None:
    """Raise `ConfigError` if a folder exists, unless it is an export and `is_forced`."""
    if to.exists() and not (is_forced and (to / EXPORT_FILE).is_file()):
        hint = "It is not an export: choose" if is_forced else "Replace it with --force, or choose"
        raise ConfigError(f"{to} exists already. {hint} another folder with --out.")


@contextmanager
def new_export(to: Path, *, is_forced: bool) -> Iterator[Path]:
    """Yield a folder that becomes `to` if the block ends without an error, and vanishes otherwise."""
    check_new_export(to, is_forced=is_forced)
    unfinished = to.parent / f".unfinished-{to.name}-{secrets.token_hex(4)}"
    unfinished.mkdir(parents=True)
    replaced = unfinished.with_name(f"{unfinished.name}-replaced")
    try:
        yield unfinished
        _readable_as_the_folder(unfinished)
        if to.exists():
            to.rename(replaced)
        unfinished.rename(to)
        shutil.rmtree(replaced, ignore_errors=True)
    except BaseException as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        if no_room(error):
            raise unwritten(to, error) from error
        raise


def _record(run: Run, commit: Commit, dataset: Dataset, known: KnownTokenizer, *, form: ModelForm) -> ExportedModel:
    """Return the record of the export; columns and files are added once they are written."""
    warned = warnings_of_commit(run, commit)
    return ExportedModel(
        run_id=run.run_id,
        step=commit.step,
        weights_digest=commit.weights_digest,
        recipe=without_paths(run.recipe, dataset.manifest.name),
        recipe_sha256=run.recipe_sha256,
        dataset=dataset.manifest.name,
        dataset_fingerprint=run.dataset_fingerprint,
        columns={},
        tokenizer_sha256=known.sha256,
        is_tokenizer_proved=known.is_proved,
        max_tokens=dataset.manifest.lengths.max,
        code_version=run.code_version,
        exported_by=code_version(),
        exported_s=SystemClock().now_s(),
        files=(),
        form=form,
        warnings=tuple(map(warning_text, warned)),
        warning_rules=tuple(warning.rule for warning in warned),
        text=dataset.manifest.text_field,
    )


def _columns_read(recipe: Recipe, dataset: Dataset) -> dict[str, str]:
    types = dataset.manifest.columns
    return {name: types[name] for name in recipe.method.columns if name != TOKENS}


def write_outline(recipe: Recipe, dataset: Dataset, folder: Path) -> ModelForm:
    """Write what `export_run` will write for this recipe, except weights and evidence, to check recipes that
    start from it; return the model form.

    Raises `ConfigError` if the recipe cannot be exported.
    """
    known = tokenizer_of(dataset.folder, dataset.manifest, None, BUILD_IT)
    from assay.models.causal import save_configuration

    form = exportable_method(recipe.method).form
    tokenizer_files = _tokenizer_files(known, dataset, recipe, form)
    folder.mkdir()
    for name, data in tokenizer_files.files.items():
        (folder / name).write_bytes(data)
    if (model := getattr(recipe.method, "model", None)) is not None:
        save_configuration(model, folder, ends=tokenizer_files.ends)
    return form


class _TokenizerFiles(NamedTuple):
    """Tokenizer files of an export."""

    files: dict[str, bytes]
    padding: int | None
    ends: tuple[int, ...]
    """Tokens that end a completion, the one that the rows use first."""


def _tokenizer_files(known: KnownTokenizer, dataset: Dataset, recipe: Recipe, form: ModelForm) -> _TokenizerFiles:
    """Return the dataset's tokenizer, special tokens and chat template in the format of transformers."""
    files, manifest = {TOKENIZER_FILE: known.path.read_bytes()}, dataset.manifest
    if form == "language_model":
        files[TOKENIZER_FILE] = _without_end(files[TOKENIZER_FILE])
    tokenizer, special, ends = load_tokenizer(known.path), dict[str, str](), tuple[int, ...]()
    if form != "classifier":
        template = _sidecar_file(known, TEMPLATE_FILE, manifest.chat_template_sha256)
        files |= {} if template is None else {TEMPLATE_FILE: template}
        _sidecar_file(known, SETTINGS_FILE, manifest.tokenizer_config_sha256)
        special = special_tokens(tokenizer_settings(known.path))
    if form == "language_model":
        ends = tuple(dict.fromkeys([*dataset_end_ids(manifest, known.path), *recipe.method.end_ids()]))
        # For engines that do not read generation_config.json. If the template uses eos_token, changing it
        # would change the rendered conversations.
        if ends and b"eos_token" not in files.get(TEMPLATE_FILE, b""):
            special["eos_token"] = str(tokenizer.id_to_token(ends[0]))
    candidates = [special.pop("pad_token", None), *_PADDING]
    padding = [token for token in candidates if token and tokenizer.token_to_id(token) is not None]
    if form == "classifier":
        padding.append(str(tokenizer.id_to_token(0)))
    elif form == "reward_model":
        of_rows = _row_ends(dataset)
        padding = [token for token in padding if tokenizer.token_to_id(token) not in of_rows]
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **special,
        **({"pad_token": padding[0]} if padding else {}),
        # A language model's configuration has its context length; a classifier cuts what exceeds its rows.
        **({"model_max_length": manifest.lengths.max} if form == "classifier" else {}),
        "model_input_names": ["input_ids", "attention_mask"],
        "clean_up_tokenization_spaces": False,
    }
    files[SETTINGS_FILE] = (json.dumps(config, indent=2) + "\n").encode()
    return _TokenizerFiles(files, tokenizer.token_to_id(padding[0]) if padding else None, ends)


def _without_end(data: bytes) -> bytes:
    """Return the tokenizer.json without a token appended to texts, which would end a prompt before its
    completion."""
    tree, is_changed = json.loads(data), False
    found = tree.get("post_processor") or {}
    for step in (
        processor for processor in found.get("processors", [found]) if processor.get("type") == "TemplateProcessing"
    ):
        for name in ("single", "pair"):
            last = max(index for index, piece in enumerate(step[name], 1) if "Sequence" in piece)
            is_changed |= last < len(step[name])
            step[name] = step[name][:last]
    return json.dumps(tree, ensure_ascii=False).encode() if is_changed else data


def _sidecar_file(known: KnownTokenizer, name: str, sha256: str | None) -> bytes | None:
    """Return a file next to the tokenizer, or None; if the manifest has its digest, it must match."""
    path = known.path.parent / name
    data = path.read_bytes() if path.is_file() else None
    if sha256 is not None and (data is None or sha256_of_bytes(data) != sha256):
        raise ConfigError(
            f"{path}: {'missing' if data is None else 'changed'}; the dataset was built with one of "
            f"sha256 {sha256[:12]}…. Restore the file next to the tokenizer, or build the dataset again."
        )
    return data


def _row_ends(dataset: Dataset) -> set[int]:
    """Return the tokens that rows end with, none of which may be a reward model's padding."""

    def of_group(group: int) -> set[int]:
        table = dataset.read_row_group(group, sequences_of(dataset.manifest.columns))
        sequences = [chunk for column in table.columns for chunk in column.chunks if len(chunk)]
        return {
            number
            for sequence in sequences
            for number in sequence.values.take(pc.subtract(sequence.offsets[1:], 1)).unique().to_pylist()
        }

    return set().union(*dataset.map_groups(of_group))


def _readable_as_the_folder(folder: Path) -> None:
    """Give the files the mode of the folder: safetensors creates files readable only by their owner."""
    mode = folder.stat().st_mode & 0o666
    for path in folder.iterdir():
        path.chmod(mode)


def file_digests(folder: Path) -> tuple[FileDigest, ...]:
    """Return the digests of all files of a folder."""
    return tuple(
        FileDigest(path=path.name, num_bytes=path.stat().st_size, sha256=sha256_of_bytes(path.read_bytes()))
        for path in sorted(folder.iterdir())
    )


def without_paths(recipe: dict[str, Any], dataset: str) -> dict[str, Any]:
    """Return the recipe without paths and URLs of this machine."""
    tree: dict[str, Any] = json.loads(json.dumps(recipe))
    tree["data"]["dataset"] = dataset
    if tree.get("evaluation"):
        tree["evaluation"]["suite"] = Path(tree["evaluation"]["suite"]).name
    for part in tree["method"].values():  # an encoder, a model, its reference
        if isinstance(part, dict) and Path(str(part.get("path", ""))).is_absolute():
            part["path"] = Path(part["path"]).name
        if isinstance(part, dict) and "url" in part:  # a remote sampler
            part |= {"url": "", "folder": ""}
    return tree


def _card(run: Run, dataset: Dataset, commit: Commit, exported: ExportedModel) -> str:
    facts = ModelFacts(
        run=run,
        commit=commit,
        exported=exported,
        manifest=dataset.manifest,
        attempts=tuple(saved_attempts(Path(run.run_dir))),
        evaluation=evaluation_of_commit(run, commit),
        audit=saved_audit(run.run_dir),
    )
    return model_card(facts)
