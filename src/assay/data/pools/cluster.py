"""Pools on the workers of Spark or Ray, which are checked before anything is written.

There is no join and no shuffle: each job reads its own rows, and files go from workers to the shared folder. A worker
must see the same files under the same paths, and have the versions that decide the bytes of shards.
"""

import hashlib
import logging
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from glob import iglob
from importlib.metadata import version
from pathlib import Path
from tempfile import NamedTemporaryFile
from threading import Timer
from typing import Literal, NamedTuple

import assay.data
from assay.base.errors import ConfigError
from assay.data.pools.pool import Pool, ThreadPool

Engine = Literal["spark", "ray"]
PACKAGES = ("assay", "jinja2", "pyarrow", "tokenizers")
"""Packages that decide the bytes of shards, besides the code of `assay.data` itself."""
PATIENCE_S = 60.0
"""Time without a worker after which the wait is stated."""


class WorkerNeeds(NamedTuple):
    """What a worker must have."""

    versions: dict[str, str]
    num_bytes: dict[Path, int | None]
    """Size of each source; None for a folder."""
    probe: Path | None
    """A file where the dataset will be written."""


@contextmanager
def cluster_pool(
    engine: Engine, address: str | None, jobs: int, *, reads: Sequence[Path], writes: Path | None = None
) -> Iterator[Pool]:
    """Connect to a cluster, check its workers, and run at least `jobs` jobs at a time there.

    `reads` are files, folders and patterns that workers must see, `writes` the folder where they must be able to
    write.
    """
    from assay.data.pools.ray import ray_pool
    from assay.data.pools.spark import spark_pool

    with (spark_pool if engine == "spark" else ray_pool)(address, jobs) as pool:
        _check_workers(pool, reads, writes, engine.capitalize())
        yield pool


def _check_workers(pool: ThreadPool, reads: Sequence[Path], writes: Path | None, engine: str) -> None:
    message = "%s has run no task for %.0f s; waiting for free workers. Ctrl-C gives up; nothing is written yet."
    notice = Timer(PATIENCE_S, logging.getLogger("assay.data").warning, (message, engine, PATIENCE_S))
    notice.daemon = True
    with ExitStack() as stack:
        notice.start()
        stack.callback(notice.cancel)
        probe = None
        if writes is not None:
            existing = next(folder for folder in (writes, *writes.parents) if folder.is_dir())
            probe = Path(stack.enter_context(NamedTemporaryFile(dir=existing, prefix=".assay-")).name)
        found = [path if path.exists() else _first_match(path) for path in reads]
        num_bytes = {path: path.stat().st_size if path.is_file() else None for path in found if path.exists()}
        needs = WorkerNeeds(_versions(), num_bytes, probe)
        for _ in pool.map(check_worker, [(needs,)] * pool.threads):
            notice.cancel()


def _first_match(pattern: Path) -> Path:
    return Path(next(iglob(str(pattern), recursive=True), pattern))  # noqa: PTH207


def check_worker(needs: WorkerNeeds) -> None:
    """Raise `ConfigError` for the first need that this machine does not meet."""
    host, found = socket.gethostname(), _versions()
    for name, expected in needs.versions.items():
        if found[name] != expected:
            raise ConfigError(
                f"{host} has {name} {found[name]}, and this machine {expected}: shards would differ. Install the same "
                "version there."
            )
    for path, num_bytes in needs.num_bytes.items():
        if not path.exists() or (num_bytes is not None and path.stat().st_size != num_bytes):
            raise ConfigError(
                f"{host} does not see {path} as it is on this machine. Put it into a folder that all workers see under "
                "the same path, e.g. of a network file system."
            )
    if needs.probe is not None and not (needs.probe.exists() and os.access(needs.probe.parent, os.W_OK)):
        raise ConfigError(
            f"{host} does not see {needs.probe.parent} or must not write there. Choose an --out in a folder that all "
            "workers see under the same path and can write to."
        )


def _versions() -> dict[str, str]:
    source = hashlib.sha256()
    for file in sorted(Path(*assay.data.__path__).rglob("*.py")):
        source.update(file.read_bytes())
    return {**{name: version(name) for name in PACKAGES}, "assay.data": source.hexdigest()[:12]}
