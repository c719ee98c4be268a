"""The bytes of model folders: an exported folder names a SHA-256 for each of its files, any other folder gets
one at its first use.

    assay.json there     whoever reads the folder compares every file that it names
    no assay.json        a run records the digests when it is made, and compares them before every attempt
"""

from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import Path
from types import MappingProxyType

from assay.base.digest import sha256_of_file, sha256_of_json
from assay.base.errors import ConfigError, DamagedDataError
from assay.records.exported_model import EXPORT_FILE, ExportedModel

_WEIGHTS = ("config.json", "*.safetensors", "*.bin")
"""Files that decide what the folder's model computes."""
SETTINGS = ("generation_config.json", "tokenizer*.json", "special_tokens_map.json", "*.jinja")
"""Files that decide which tokens it reads and writes."""


def whole_export(
    folder: Path, *, known: Mapping[str, str] = MappingProxyType({}), only: tuple[str, ...] = ("*",)
) -> ExportedModel | None:
    """The record of an exported folder, after the files that it names were compared; None of another folder.

    `known`: SHA-256 of files that were read already; `only`: patterns of the files that will be read. Raises
    `DamagedDataError` for a file that changed.
    """
    path = folder / EXPORT_FILE
    if not path.is_file():
        return None
    exported = ExportedModel.from_json(path.read_bytes(), source=path)
    for file in (digest for digest in exported.files if _is_one(digest.path, only)):
        found = folder / file.path
        if not found.is_file() or (known.get(file.path) or sha256_of_file(found)) != file.sha256:
            raise DamagedDataError(
                f"{found}: not the file that was exported. Export the model again; if the file was changed on "
                f"purpose, remove {EXPORT_FILE}, which describes the export."
            )
    return exported


def folder_digests(folder: Path) -> tuple[str, str]:
    """Return the digest of a folder's weights and configuration, and of its tokenizer and other settings."""
    paths = sorted(filter(Path.is_file, folder.iterdir())) if folder.is_dir() else []
    files = {path.name: sha256_of_file(path) for path in paths if _is_one(path.name, (*_WEIGHTS, *SETTINGS))}
    if not _of(files, _WEIGHTS):
        raise ConfigError(f"{folder}: no config.json there. Name a folder that save_pretrained wrote.")
    whole_export(folder, known=files)
    return weights_and_config_digest(files), sha256_of_json(_of(files, SETTINGS))


def weights_and_config_digest(files: Mapping[str, str]) -> str:
    """Return the digest of a folder's weights and configuration, computed from the SHA-256 of its files."""
    return sha256_of_json(_of(files, _WEIGHTS))


def _of(files: Mapping[str, str], patterns: tuple[str, ...]) -> dict[str, str]:
    return {name: digest for name, digest in files.items() if _is_one(name, patterns)}


def _is_one(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns)
