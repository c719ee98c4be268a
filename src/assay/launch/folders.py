"""The checkpoint folders that a recipe begins with: whether they go with the rows, and stay what they were.

    recipe --> method.model.path, method.reference.path, ... --> digests, in the run's record
                                                             --> tokenizer and chat template: the dataset's own?

A commit holds what is trained. What is not (a frozen reference, the weights below adapters) is read from its
folder at every start, so a folder that changed would change the run in its midst.
"""

import hashlib
from functools import lru_cache
from pathlib import Path

from tokenizers import Tokenizer

from assay.base.config import dotted_leaves
from assay.base.digest import sha256_of_bytes, sha256_of_json
from assay.base.errors import ConfigError, DamagedDataError
from assay.base.installed import installed_path
from assay.data.dataset.dataset import Dataset
from assay.data.dataset.formats.template import TEMPLATE_FILE
from assay.data.dataset.tokens import TOKENIZER_FILE, load_tokenizer, tokenizer_settings
from assay.records.run import Run
from assay.training.recipe import Recipe

_DECISIVE = ("config.json", "*.safetensors", "*.bin")
"""Files of a folder that decide what its model computes."""
_AT_ONCE = 1 << 22


def checkpoint_folders(recipe: Recipe) -> dict[str, str]:
    """Key of the recipe -> the folder that it names."""
    leaves = dotted_leaves({"method": recipe.method.model_dump(mode="json")})
    return {key: value for key, value in leaves if key.endswith(".path") and isinstance(value, str)}


def digests_of(recipe: Recipe) -> dict[str, str]:
    """Key of the recipe -> SHA-256 over weights and configuration in its folder, or of a commit's weights."""
    folders = {key: _digest(installed_path(path)) for key, path in checkpoint_folders(recipe).items()}
    runs = {key: name.checked(key).commit.weights_digest for key, name in recipe.method.runs.items()}
    return folders | runs


def refuse_changed(run: Run, recipe: Recipe) -> None:
    """Raise `DamagedDataError` where a folder is not what it was when the run was made."""
    if not run.folders:
        return
    for key, now in digests_of(recipe).items():
        if (was := run.folders.get(key)) not in (None, now):
            path = {**checkpoint_folders(recipe), **recipe.method.runs}[key]
            raise DamagedDataError(
                f"{key}={path}: its weights and configuration have sha256 {now[:12]}…, and had {was[:12]}… "
                f"when run '{run.run_id}' was made: it would go on with another model. Restore the folder or "
                "the run, or train a new one."
            )


def refuse_other_tokenizer(dataset: Dataset, path: str, named: str) -> None:
    """Raise `ConfigError` where the folder's tokenizer writes other tokens than the dataset holds.

    A folder without a tokenizer, or a dataset without its own beside it, says nothing.
    """
    theirs, ours = installed_path(path) / TOKENIZER_FILE, _kept(dataset, TOKENIZER_FILE)
    if ours is None or not theirs.is_file() or theirs.read_bytes() == ours.read_bytes():
        return
    tokenizers = load_tokenizer(theirs), load_tokenizer(ours)
    one, other = map(_words, tokenizers)
    for number in sorted(one.keys() & other.keys()):
        if one[number] != other[number]:
            raise ConfigError(
                f"{named}: its tokenizer is not that of dataset '{dataset.manifest.name}': token {number} is "
                f"{one[number]!r} there and {other[number]!r} in the dataset. Build the dataset with the "
                f"model's own (--tokenizer {path})."
            )


def refuse_other_template(dataset: Dataset, path: str, named: str) -> None:
    """Raise `ConfigError` where the folder's chat template is not the one that rendered the rows."""
    folder, ours = installed_path(path), _kept(dataset, TEMPLATE_FILE)
    file = folder / TEMPLATE_FILE
    inside = tokenizer_settings(folder).get("chat_template") if (folder / TOKENIZER_FILE).is_file() else None
    theirs = file.read_text(encoding="utf-8") if file.is_file() else inside
    if ours is None or not isinstance(theirs, str):
        return
    if theirs.strip() != ours.read_text(encoding="utf-8").strip():
        raise ConfigError(
            f"{named}: its chat template is not the one that rendered dataset "
            f"'{dataset.manifest.name}': it would "
            f"be asked about conversations that are written otherwise. Build the dataset with the model's own "
            f"(--tokenizer {path}, without --chat-template), or put {ours} into the folder."
        )


def _kept(dataset: Dataset, name: str) -> Path | None:
    """A file that the dataset was built with, if it lies there as it was."""
    manifest = dataset.manifest
    wanted = {TOKENIZER_FILE: manifest.tokenizer_sha256, TEMPLATE_FILE: manifest.chat_template_sha256}[name]
    for path in (dataset.folder / name, dataset.folder.resolve().parent / name):
        if wanted is not None and path.is_file() and sha256_of_bytes(path.read_bytes()) == wanted:
            return path
    return None


def _words(tokenizer: Tokenizer) -> dict[int, str]:
    """Number -> token, but for special ones: those that a model has to spare are given names of one's own."""
    special = {number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    return {number: word for word, number in tokenizer.get_vocab().items() if number not in special}


def _digest(folder: Path) -> str:
    files = sorted({path for pattern in _DECISIVE for path in folder.glob(pattern)})
    if not files:
        raise ConfigError(f"{folder}: no config.json there. Name a folder that save_pretrained wrote.")
    return sha256_of_json({path.name: _digest_of_file(path, *_stamp(path)) for path in files})


def _stamp(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


@lru_cache(maxsize=256)
def _digest_of_file(path: Path, size: int, modified_ns: int) -> str:  # noqa: ARG001
    """Read once for each time that it was written."""
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while part := file.read(_AT_ONCE):
            digest.update(part)
    return digest.hexdigest()
