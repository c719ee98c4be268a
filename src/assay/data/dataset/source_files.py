"""Lists the source files below a folder or prefix. Symbolic links are followed; a broken link is an error."""

import os
from collections.abc import Iterable
from pathlib import Path

from assay.base.errors import DataError
from assay.data.dataset.dataset import ROW_GROUPS_FILE
from assay.data.dataset.manifest_file import MANIFEST_FILE
from assay.store.objects import open_store

SUFFIX = ".parquet"


def shard_paths(source_url: str) -> list[str]:
    """Return the Parquet files of a source, sorted.

    Skips paths with a part that starts with `_` or `.` (unfinished writes, logs), as Spark and pyarrow do, and the
    row group table of a manifest that lies among the shards.
    """
    is_remote = "://" in source_url or source_url.startswith("memory:")
    keys = {item.key for item in open_store(source_url).list("")} if is_remote else set(files_below(Path(source_url)))
    return _named_in_utf8(
        key
        for key in keys
        if key.lower().endswith(SUFFIX)
        and not any(_is_hidden(part) for part in key.split("/"))
        and not (key.rpartition("/")[2] == ROW_GROUPS_FILE and _sibling(key, MANIFEST_FILE) in keys)
    )


def text_paths(folder: Path, suffix: str) -> list[str]:
    """Return the files below a folder with this suffix, sorted, as relative POSIX paths."""
    return _named_in_utf8(path for path in files_below(folder) if path.endswith(suffix))


def files_below(folder: Path) -> list[str]:
    """Return the files below a folder, following links, each real folder once."""
    found: list[str] = []
    seen: set[str] = set()
    folders: list[Path] = [folder] if folder.is_dir() else []
    links: list[Path] = []
    while folders or links:
        # Links last, so that files inside the folder keep their own path if a link also leads to them.
        current = folders.pop() if folders else links.pop(0)
        if (real := os.path.realpath(current)) in seen:
            continue
        seen.add(real)
        try:
            entries = sorted(os.scandir(current), key=lambda entry: entry.name)
        except OSError as error:
            raise DataError(f"{current}: cannot be listed: {error.strerror}. Check its permissions.") from error
        for entry in entries:
            if entry.is_dir():
                (links if entry.is_symlink() else folders).append(Path(entry.path))
            elif entry.is_file():
                found.append(Path(entry.path).relative_to(folder).as_posix())
            elif entry.is_symlink() and not _is_hidden(entry.name):
                raise DataError(
                    f"{entry.path}: a link to {Path(entry.path).readlink()}, which is not there. Restore what "
                    "it leads to, or remove the link."
                )
    return found


def _named_in_utf8(paths: Iterable[str]) -> list[str]:
    paths = sorted(paths)
    for path in paths:
        try:
            path.encode()
        except UnicodeEncodeError as error:
            raise DataError(f"{path!a}: the name is not UTF-8. Rename the file or its folder.") from error
    return paths


def _is_hidden(name: str) -> bool:
    return name.startswith(("_", ".")) and "=" not in name


def _sibling(key: str, name: str) -> str:
    folder, slash, _ = key.rpartition("/")
    return f"{folder}{slash}{name}"
