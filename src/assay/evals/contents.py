"""The files that a suite names, and the suite's digest: its definition with the contents of those files.

    suite.yaml -> items, held-out texts, a registry's evals -> digest of each -> one digest

Suites with equal text differ if their items differ. This digest therefore marks evaluated checkpoints, and seals suites
for a campaign. It is requested often (at each commit of a run that evaluates), so a process reads each file once, and
again only if its size or timestamps change.
"""

import hashlib
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from assay.base.digest import sha256_of_json
from assay.evals.config import (
    Benchmark,
    BitsPerByte,
    Classification,
    Generation,
    HeldOutRows,
    MultipleChoice,
    RegistryBenchmark,
    Suite,
    read_suite,
)
from assay.scoring.registry.registry import Registry

MAX_REMEMBERED = 65_536
"""Number of file digests that a process caches; enough for a large code base as held-out text."""


class _Stamp(NamedTuple):
    """What identifies the version of a file that was read."""

    path: str
    inode: int
    size_bytes: int
    modified_ns: int
    changed_ns: int


def suite_sha256(path: Path, suite: Suite | None = None) -> str:
    """Return the SHA-256 of the suite in a file and of all files that it names; `suite` if it was read before.

    Without files, it is the digest of the definition. A missing file counts as absent; evaluation reports it.
    """
    suite = read_suite(path) if suite is None else suite
    files = named_files(suite, path.parent)
    return sha256_of_json([suite.sha256(), files]) if files else suite.sha256()


def named_files(suite: Suite, folder: Path) -> dict[str, str | None]:
    """Map the name of each file (relative to the suite's folder if below it) to its SHA-256; None if it is missing."""
    paths = {path for benchmark in suite.benchmarks for path in _paths(benchmark, folder)}
    return {_name(path, folder): _sha256(path) for path in sorted(paths)}


def held_out_files(config: BitsPerByte, folder: Path) -> list[Path]:
    """Return the files that a benchmark's patterns match, in order."""
    excluded = {path for pattern in config.exclude for path in folder.glob(pattern)}
    found = {path for pattern in config.files for path in folder.glob(pattern) if path.is_file()}
    return sorted(found - excluded)


def _paths(benchmark: Benchmark, folder: Path) -> Iterator[Path]:
    match benchmark:
        case MultipleChoice() | Generation():
            yield folder / benchmark.items
        case BitsPerByte():
            yield from held_out_files(benchmark, folder)
        case RegistryBenchmark():
            yield from _registry_files(folder / benchmark.registry, benchmark.eval)
        case Classification() | HeldOutRows():
            # Its items are the rows that each run's own recipe holds out; their results name them.
            return


def _registry_files(registry: Path, name: str) -> tuple[Path, ...]:
    """Return all definitions, because an alias may point to any of them, and the data of this eval only."""
    defined = [path for part in ("evals", "modelgraded") for path in sorted((registry / part).glob("*.yaml"))]
    if not defined:
        return (registry / "evals",)
    return (*defined, *_data_files(registry, name, tuple(_stamp(path) for path in defined)))


@lru_cache(maxsize=64)
def _data_files(registry: Path, name: str, definitions: tuple[_Stamp, ...]) -> tuple[Path, ...]:  # noqa: ARG001
    return Registry(registry).data_files(name)


def _sha256(path: Path) -> str | None:
    return _sha256_of_stamped(_stamp(path)) if path.is_file() else None


def _stamp(path: Path) -> _Stamp:
    found = path.stat()
    return _Stamp(str(path), found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


@lru_cache(maxsize=MAX_REMEMBERED)
def _sha256_of_stamped(stamp: _Stamp) -> str:
    with Path(stamp.path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _name(path: Path, folder: Path) -> str:
    return path.relative_to(folder).as_posix() if path.is_relative_to(folder) else str(path)
