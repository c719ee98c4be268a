"""Checks the checkpoint folders that a recipe names: they must fit the rows and must not change.

    recipe --> method.model.path, method.reference.path, ... --> digests, in the run's record
                                                             --> tokenizer and chat template: the dataset's own?

A commit holds trained weights only. Frozen ones (a reference, the base of adapters) are read from their folder at every
start, so a changed folder would change the run.
"""

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from assay.base.config import dotted_leaves
from assay.base.digest import sha256_of_bytes
from assay.base.errors import ConfigError, DamagedDataError
from assay.base.installed import installed_path
from assay.data.dataset.checkpoint_tokens import (
    DIFFICULT,
    check_embeddings,
    configured_end_ids,
    embedding_counts,
    sample_texts,
)
from assay.data.dataset.dataset import Dataset
from assay.data.dataset.formats.template import TEMPLATE_FILE, tokenizer_template
from assay.data.dataset.tokens import TOKENIZER_FILE, load_tokenizer
from assay.models.config import PretrainedEncoderConfig, checkpoint_path
from assay.records.exported_model import EXPORT_FILE
from assay.records.run import Run
from assay.store.model_folder import folder_digests, whole_export
from assay.training.methods.registry import method_of
from assay.training.recipe import Recipe
from assay.training.trainer.method_config import samples

_SETTINGS = ": settings"
"""Suffix of a recipe key: the digest of tokenizer and settings in its folder."""


def checkpoint_folders(recipe: Recipe) -> dict[str, str]:
    """Return recipe key -> folder."""
    leaves = dotted_leaves({"method": recipe.method.model_dump(mode="json")})
    return {key: value for key, value in leaves if key.endswith(".path") and isinstance(value, str)}


def digests_of(recipe: Recipe) -> dict[str, str]:
    """Return recipe key -> SHA-256 over weights and configuration of its folder, or of a commit's weights.

    If the run samples, also over tokenizer and settings of the folder, which decide the rollouts.
    """
    folders: dict[str, str] = {}
    for key, path in checkpoint_folders(recipe).items():
        folders[key], settings = folder_digests(installed_path(path))
        folders |= {f"{key}{_SETTINGS}": settings} if samples(recipe.method) else {}
    runs = {key: name.checked(key).commit.weights_digest for key, name in recipe.method.runs.items()}
    return folders | runs


def check_unchanged(run: Run, recipe: Recipe) -> None:
    """Raise `DamagedDataError` if a folder has changed since the run was created."""
    for key, now in digests_of(recipe).items():
        if (was := run.folders.get(key)) not in (None, now):
            name = key.removesuffix(_SETTINGS)
            path = {**checkpoint_folders(recipe), **recipe.method.runs}[name]
            what = "weights and configuration" if name == key else "tokenizer and settings"
            raise DamagedDataError(
                f"{name}={path}: its {what} have sha256 {now[:12]}…, and had {was[:12]}… "
                f"when run '{run.run_id}' was created: it would continue with another model. Restore the folder or "
                "the run, or train a new one."
            )


def check_models(recipe: Recipe) -> None:
    """Raise if a folder of the recipe is a corrupt export, or its tensors do not match the model."""
    for path in checkpoint_folders(recipe).values():
        whole_export(installed_path(path))
    check_tensors(recipe)


def check_tensors(recipe: Recipe) -> None:
    """Raise `ConfigError` if the tensors of a folder do not match the model that the recipe trains."""
    if not (folders := checkpoint_folders(recipe)):
        return
    from assay.models.pretrained import CAUSAL, ENCODER, check_pretrained, declared_kind

    is_reward = getattr(method_of(recipe.method), "form", None) == "reward_model"
    for key, folder in ((key, checkpoint_path(path)) for key, path in folders.items()):
        is_encoder = isinstance(getattr(recipe.method, key.split(".")[1]), PretrainedEncoderConfig)
        check_pretrained(ENCODER if is_encoder else declared_kind(folder) if is_reward else CAUSAL, folder)


def check_tokenizer(dataset: Dataset, path: str, named: str) -> None:
    """Raise `ConfigError` if the folder's tokenizer maps tokens differently than the dataset's.

    Nothing is checked if the folder or the dataset has no tokenizer.
    """
    folder_file, ours = installed_path(path) / TOKENIZER_FILE, _dataset_file(dataset, TOKENIZER_FILE)
    if ours is None or not folder_file.is_file() or folder_file.read_bytes() == ours.read_bytes():
        return
    tokenizers = load_tokenizer(folder_file), load_tokenizer(ours)
    one, other = map(_words, tokenizers)
    for number in sorted(one.keys() & other.keys()):
        if one[number] != other[number]:
            raise ConfigError(
                f"{named}: its tokenizer is not that of dataset '{dataset.manifest.name}': token {number} is "
                f"{one[number]!r} there and {other[number]!r} in the dataset. Build the dataset with the "
                f"model's own (--tokenizer {path})."
            )


def check_vocabulary(dataset: Dataset, recipe: Recipe) -> None:
    """Raise `ConfigError` if a model has no embedding for a token of the dataset's tokenizer, or if its end
    token is an ordinary word of it."""
    ours = _dataset_file(dataset, TOKENIZER_FILE)
    if ours is None:
        return
    tokenizer, boundaries = load_tokenizer(ours), dataset.manifest.boundaries
    method = {"method": recipe.method.model_dump(mode="json")}
    for key, size in embedding_counts(method).items():
        check_embeddings(tokenizer, size, where=f"{key}, on dataset '{dataset.manifest.name}'")
    added, rows = tokenizer.get_added_tokens_decoder(), boundaries.end_ids if boundaries else ()
    for key, path in checkpoint_folders(recipe).items():
        for end in configured_end_ids(installed_path(path)) if rows and key == "method.model.path" else ():
            if end not in added and end not in rows:
                raise ConfigError(
                    f"{key}={path}: its configuration has the end token {end} (eos_token_id): "
                    f"{tokenizer.id_to_token(end)!r}, a word of dataset '{dataset.manifest.name}': the rows "
                    f"end with {tokenizer.id_to_token(rows[0])!r}. Put {rows[0]} as 'eos_token_id' into its "
                    "config.json and generation_config.json."
                )


def check_tokenization(dataset: Dataset, path: str) -> None:
    """Raise `ConfigError` if transformers' AutoTokenizer would tokenize the rows differently.

    Exported folders are exempt: they were trained with their tokenizer.json.
    """
    folder, ours = installed_path(path), _dataset_file(dataset, TOKENIZER_FILE)
    if ours is not None and not (folder / EXPORT_FILE).is_file():
        difference = tokenization_warning(folder, load_tokenizer(ours), sample_texts(dataset, ours))
        if difference is not None:
            raise ConfigError(f"--model {path}: {difference}")


def tokenization_warning(folder: Path, tokenizer: Tokenizer, texts: Sequence[str] = DIFFICULT) -> str | None:
    """Describe how a model folder's AutoTokenizer differs from a tokenizer, with a fix; None if it does not."""
    if not (folder / "config.json").is_file() or not (folder / TOKENIZER_FILE).is_file():
        return None
    from assay.models.exporting import tokenization_difference  # imports transformers

    difference = tokenization_difference(folder, tokenizer, texts)
    return difference and (
        f"{difference}. assay uses tokenizer.json as it is, so the model would be trained on other tokens than "
        "it was trained on with transformers. Save it as transformers reads it "
        "(AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)) and build the dataset again; or have "
        "transformers read it as it is: docs/models.md, 'One tokenizer'."
    )


def check_template(dataset: Dataset, path: str, named: str) -> None:
    """Raise `ConfigError` if the folder's chat template is not the one that rendered the rows."""
    folder, ours = installed_path(path), _dataset_file(dataset, TEMPLATE_FILE)
    folder_file = tokenizer_template(folder, {}) if ours and (folder / TOKENIZER_FILE).is_file() else None
    if ours and folder_file and folder_file.source.strip() != ours.read_text(encoding="utf-8").strip():
        raise ConfigError(
            f"{named}: its chat template is not the one that rendered dataset '{dataset.manifest.name}': it "
            f"would see conversations in another format. Build the dataset with the "
            f"model's own (--tokenizer {path}, without --chat-template), or put {ours} into the folder."
        )


def _dataset_file(dataset: Dataset, name: str) -> Path | None:
    """Return a file that the dataset was built with, if it is unchanged."""
    manifest = dataset.manifest
    sha256 = {TOKENIZER_FILE: manifest.tokenizer_sha256, TEMPLATE_FILE: manifest.chat_template_sha256}[name]
    for path in (dataset.folder / name, dataset.folder.resolve().parent / name):
        if sha256 is not None and path.is_file() and sha256_of_bytes(path.read_bytes()) == sha256:
            return path
    return None


def _words(tokenizer: Tokenizer) -> dict[int, str]:
    """Return id -> token without special tokens: unused ones of a model are often renamed."""
    special = {number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    return {number: word for word, number in tokenizer.get_vocab().items() if number not in special}
