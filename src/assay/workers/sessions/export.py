"""Exports a session's model, at any of its steps or saved weights, to a folder that PEFT or transformers loads."""

import json
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from assay.base.clock import SystemClock
from assay.base.code_version import code_version
from assay.base.digest import canonical_json, sha256_of_bytes
from assay.base.errors import ConfigError, StoreError
from assay.base.units import number_of
from assay.data.dataset.formats.template import TEMPLATE_FILE
from assay.data.dataset.tokens import SETTINGS_FILE, TOKENIZER_FILE, end_tokens, load_tokenizer, tokenizer_file
from assay.models.exporting import Adapters, ExportOptions, keep_tokenization
from assay.records.commit import Commit
from assay.records.cursor import Cursor
from assay.records.exported_model import EXPORT_FILE, ExportedModel
from assay.records.session import SessionModel
from assay.serving.sessions.request_log import TargetId
from assay.serving.sessions.sessions import SessionRepository, read_checkpoint_path
from assay.store.attempts import saved_attempts
from assay.store.commit_log import CommitLog, checkpoint_folder
from assay.store.home import Home
from assay.store.ledger.writer import marking
from assay.store.objects import open_store
from assay.training.sessions.exporting import export_weights
from assay.workers.sessions.base import base_of_model
from assay.workers.sessions.model_copy import copied_model, named_model
from assay.workers.sessions.replay import steps_of
from assay.workers.sessions.weights import saved_weights
from assay.workflows.export.export import Exported, file_digests, new_export, without_paths
from assay.workflows.rebuild import fold_in

_TEXTS = ("A request is a record.", "  3 + 4 = 7\n", "été, 東京")
"""Texts that the exported tokenizer must encode as the session's."""
_CARD = """\
---
library_name: {library}
pipeline_tag: text-generation
tags: [assay]
---

# {base}: {model} after {step} optimizer steps

The requests of a client's own training loop made this model, over assay's Tinker API. `assay.json` names the base
model's recipe and the digests of all files. `assay runs audit {session}` tells what the model learned.
"""


class _Weights(NamedTuple):
    """Weights of a model, as they are stored."""

    step: int
    """Optimizer steps before them."""
    data: bytes


def export_session(
    sessions: SessionRepository, name: str, *, step: int | None, to: Path | None, adapters: Adapters, is_forced: bool
) -> Exported:
    """Write a model of a session to a new folder, or with `is_forced` over an earlier export.

    `name`: a session with one model, `SESSION:train:NUMBER`, or the path of saved weights. `step`: None for the last.
    """
    path = read_checkpoint_path(name)
    target, model = named_model(sessions, name if path is None else str(path.model))
    to = to or Path(f"{target.session_id}-train-{target.number}{'' if step is None else f'-step{step}'}")
    if path is not None and step is not None:
        raise ConfigError("--step: a path names saved weights. Leave one of them out.")
    with new_export(to, is_forced=is_forced) as folder:
        weights = _at_step(sessions, target, step) if path is None else _saved(sessions, name)
        record = _write(model, target, weights, folder, adapters)
        (folder / EXPORT_FILE).write_text(record.to_sealed_json() + "\n", encoding="utf-8")
    return Exported(to, record)


def record_export(home: Home, exported: Exported) -> None:
    """Record an exported model as a checkpoint of the session's run, so that suites evaluate it: `assay eval work`."""
    record, folder = exported.record, str(exported.folder.resolve())
    session_id, _, number = record.run_id.partition(":train:")
    if record.base_sha256 is not None or number != "0" or not home.has_run(session_id):
        return  # adapters alone, or one of several models, are no weights of the run
    run = home.run(session_id)
    attempt = saved_attempts(Path(run.run_dir))[-1]
    log = CommitLog(open_store(run.store_url), attempt=attempt.attempt)
    if any((known.adopted_from, known.weights_digest) == (folder, record.weights_digest) for known in log.commits()):
        return
    log.append(
        Commit(
            attempt=attempt.attempt,
            world_size=attempt.world_size,
            step=record.step,
            cursor=Cursor(),
            committed_s=record.exported_s,
            folder=checkpoint_folder(record.step, attempt.attempt),
            files=record.files,
            weights_digest=record.weights_digest,
            receipts_from_step=0,
            rows_trained=0,
            adopted_from=folder,
        )
    )
    with suppress(StoreError), marking(home, session_id), home.open_ledger() as ledger:
        fold_in(home, session_id, ledger)


def _at_step(sessions: SessionRepository, target: TargetId, step: int | None) -> _Weights:
    """Return the weights after a step, executed again from the newest state before."""
    steps = steps_of(sessions.requests(target), most=step or None)
    if step == 0 or len(steps) < (step or 1):
        raise ConfigError(f"--step: {target} has executed {number_of(len(steps), 'step')}; the first one is 1.")
    with copied_model(sessions, target, before=steps[-1].until) as copy:
        while copy.next_seq_id <= steps[-1].update:
            copy.execute_next()
        return _Weights(len(steps), copy.trainer.stored(with_moments=False))


def _saved(sessions: SessionRepository, name: str) -> _Weights:
    """Return saved weights."""
    if (saved := saved_weights(sessions, name)) is None:
        raise ConfigError(f"There are no saved weights at {name}.")
    return _Weights(saved.state.num_steps, saved.state.data)


def _write(model: SessionModel, target: TargetId, weights: _Weights, folder: Path, adapters: Adapters) -> ExportedModel:
    """Write all files but the record, and return it."""
    base = base_of_model(model)
    tokenizer = tokenizer_file(base.tokenizer)
    files = {name: tokenizer.parent / name for name in (SETTINGS_FILE, TEMPLATE_FILE)} | {TOKENIZER_FILE: tokenizer}
    (folder / SETTINGS_FILE).write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}), encoding="utf-8")
    for name, file in files.items():
        if file.is_file():
            (folder / name).write_bytes(file.read_bytes())
    options = ExportOptions(ends=end_tokens(base.tokenizer), adapters=adapters)
    base_sha256 = export_weights(base.config, weights.data, folder, options, seed=base.recipe.seed)
    keep_tokenization(folder, load_tokenizer(folder), _TEXTS)
    library = "transformers" if base_sha256 is None else "peft"
    card = _CARD.format(
        library=library, base=model.base_model, model=target, step=weights.step, session=target.session_id
    )
    (folder / "README.md").write_text(card, encoding="utf-8")
    recipe = without_paths({**base.recipe.model_dump(mode="json"), "method": base.config.model_dump(mode="json")}, "")
    shape = base.config.model.shape()
    assert shape is not None, "it was trained"
    return ExportedModel(
        run_id=str(target),
        step=weights.step,
        weights_digest=sha256_of_bytes(weights.data),
        recipe=recipe,
        recipe_sha256=sha256_of_bytes(canonical_json(recipe).encode()),
        dataset="",
        dataset_fingerprint="",
        columns={},
        tokenizer_sha256=sha256_of_bytes(tokenizer.read_bytes()),
        is_tokenizer_proved=True,
        max_tokens=shape.max_tokens,
        code_version="",
        exported_by=code_version(),
        exported_s=SystemClock().now_s(),
        files=file_digests(folder),
        form="language_model",
        base_sha256=base_sha256,
    )
