"""Locates a run by the folder it is opened in, whatever paths its record has.

A record stores absolute paths of the run's folder, store, dataset and suite at creation, but folders move. When a
run is opened in another folder, these paths move with it:

    store               if it was the run's folder or inside it
    dataset and suite   if they exist at the same relative path; otherwise they keep their paths

Data that is read is verified by digest. Training needs a stricter check: a moved folder is the run, but a copy is
not, because two copies that train would share one run id. `reject_copy` is called before training.

A run never creates links in its folder. A link there could redirect writes, so `reject_links` refuses it. The
folder itself may be reached through links.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from assay.base.errors import ConfigError
from assay.records.run import Run
from assay.store.known_runs import RUN_FILE

_OF_THE_STORE = ("capsules", "checkpoints", "log", "log-summaries")
"""Folders that grow with the run: links in them are found by the store, where it writes (`FolderStore`)."""


def written_in(folder: Path) -> Run:
    """Return the record in a run's folder, unchanged."""
    path = folder / RUN_FILE
    return Run.from_json(path.read_bytes(), source=path)


def opened_in(run: Run, folder: Path) -> Run:
    """Return the run with its paths adjusted to `folder`, which is absolute and free of links."""
    if (was := Path(run.run_dir)) == folder:
        return run
    recipe: dict[str, Any] = {**run.recipe}
    for part, key, inside in (("data", "dataset", "manifest.json"), ("evaluation", "suite", "")):
        if isinstance(recipe.get(part), dict) and isinstance(path := recipe[part].get(key), str):
            recipe[part] = {**recipe[part], key: moved_along(path, was, folder, inside)}
    store = run.store_url
    if "://" not in store and not store.startswith("memory:"):
        store = moved_along(store, was, folder, "log")
    return run.model_copy(update={"run_dir": str(folder), "store_url": store, "recipe": recipe})


def moved_along(path: str, was: Path, now: Path, inside: str = "") -> str:
    """Return a path in or next to the folder `was`, moved along to `now` if `inside` exists there."""
    if Path(path).is_relative_to(was):
        return str(now / Path(path).relative_to(was))
    if not (Path(path).is_absolute() and was.is_absolute()) or os.path.commonpath((path, was)) == os.sep:
        return path
    moved = os.path.normpath(now / os.path.relpath(path, was))
    return moved if (Path(moved) / inside).exists() else path


def original_of(run: Run) -> Path | None:
    """Return the folder in which the run began or was last trained, if it still exists and is another one.

    If the original is not reachable from here, a copy cannot be distinguished from it.
    """
    here = Path(run.run_dir)
    if not (here / RUN_FILE).is_file():
        return None
    from assay.store.attempts import saved_attempts  # here, for it brings the object stores along

    was = Path(
        next((attempt.folder for attempt in reversed(saved_attempts(here)) if attempt.folder), None)
        or written_in(here).run_dir
    )
    is_it = not (was / RUN_FILE).is_file() or was.samefile(here) or written_in(was).run_id != run.run_id
    return None if is_it else was


def reject_copy(run: Run) -> None:
    """Raise `ConfigError` if a run's folder is a copy and the original still exists."""
    if (was := original_of(run)) is None:
        return
    raise ConfigError(
        f"{run.run_dir} is a copy of run '{run.run_id}', which exists in {was}: training both "
        f"would create two runs with one id. Continue that one (ASSAY_HOME={was.parent}), move it away to "
        "continue here, or start a new run from the last commit: 'assay train --from "
        f"{run.run_id}'."
    )


def reject_links(folder: Path) -> None:
    """Raise `ConfigError` if a run's or campaign's folder contains anything but files and folders."""
    for path in _planted(folder):
        what = f"a link to {path.readlink()}" if path.is_symlink() else "neither a file nor a folder"
        raise ConfigError(
            f"{path} is {what}: writes to that name would go elsewhere, and assay never creates "
            "such files. Nothing was started. Check where this folder comes from; then remove it, or replace "
            "it by what it refers to."
        )


def _planted(folder: Path, left_out: tuple[str, ...] = _OF_THE_STORE) -> Iterator[Path]:
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                if entry.name not in left_out:
                    yield from _planted(Path(entry.path), ())
            elif not entry.is_file(follow_symlinks=False):
                yield Path(entry.path)
