"""Imports transformers faster, without SciPy, accelerate (which PEFT brings) and parsing all of its model files.

transformers imports SciPy, if it is installed, for losses of object detection, and accelerate for models on several
devices: a tenth of a rank's import time each. It also reads the source of all 2,500 model files, twice, to find their
exports: another tenth. The result is cached next to our bytecode, with the files' sizes and times as the key, so
changed files are read again.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import cache_from_source
from pathlib import Path
from types import ModuleType
from typing import Any

READER = "transformers.utils.import_utils"
READ_FUNCTION = "define_import_structure"
"""The function that finds the exports of a package."""
HIDDEN = ("accelerate", "scipy")
"""Packages that transformers does not see. It never sees accelerate later, so it does not expect its names."""

Exported = Mapping[frozenset[str], Mapping[str, set[str]]]
"""Required packages -> module -> exported names, in transformers' format."""


@contextmanager
def lean_transformers() -> Iterator[None]:
    """Import transformers for the first time within this context; afterwards everything can be imported.

    Nothing is hidden from a transformers that was imported before: it knows by then what is installed.
    """
    hidden = [name for name in HIDDEN if name not in sys.modules and READER not in sys.modules]
    for name in hidden:
        sys.modules[name] = None  # type: ignore[assignment]  # import machinery reports it as not installed
    sys.meta_path.insert(0, _Reader)
    try:
        yield
    finally:
        sys.meta_path.remove(_Reader)
        for name in hidden:
            del sys.modules[name]
        looked: Any = getattr(sys.modules.get(READER), "is_scipy_available", None)
        if hasattr(looked, "cache_clear"):
            looked.cache_clear()  # a model loaded later may need SciPy


class _Reader(SourceFileLoader):
    """Finds and loads the module in which transformers reads its model files."""

    @classmethod
    def find_spec(cls, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:  # noqa: ARG003
        spec = PathFinder.find_spec(name, path) if name == READER else None
        if spec is None or spec.origin is None:
            return None
        spec.loader = cls(name, spec.origin)
        return spec

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        cache_file = Path(cache_from_source(__file__)).with_suffix(".models.json")
        names = vars(module)
        if READ_FUNCTION in names:  # other versions of transformers may differ
            names[READ_FUNCTION] = cached_reader(names[READ_FUNCTION], Path(self.path), cache_file)


def cached_reader(read: Callable[..., Exported], reader: Path, cache_file: Path) -> Callable[..., Exported]:
    """Return a function like transformers' `read` that reads all models only once.

    `reader` is the source file of `read`; `cache_file` stores the result across processes if it can be written.
    """
    structures: dict[str, list[Any]] = {}

    def define_import_structure(module_path: str | Path, prefix: str | None = None) -> Exported:
        folder = Path(module_path)
        if folder.suffix == ".py":
            folder = folder.parent
        if folder.name != "models":
            return read(module_path, prefix=prefix)
        key = _key(folder, reader)
        if key not in structures:
            structures[key] = _load_cached(cache_file, key) or _store(cache_file, key, read(str(folder)))
        before = f"{prefix}." if prefix else ""
        return {
            frozenset(needed): {f"{before}{module}": set(names) for module, names in modules.items()}
            for needed, modules in structures[key]
        }

    return define_import_structure


def _key(folder: Path, reader: Path) -> str:
    """Return a digest of everything that the result depends on: names, sizes and times of the files."""
    about = reader.stat()
    found = [f"{reader} {about.st_mtime_ns} {about.st_size}", *sorted(_files(str(folder)))]
    return sha256("\n".join(found).encode()).hexdigest()


def _files(folder: str) -> Iterator[str]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(".py"):
                about = entry.stat()
                yield f"{entry.path} {about.st_mtime_ns} {about.st_size}"
            elif entry.name != "__pycache__" and entry.is_dir():
                yield from _files(entry.path)


def _load_cached(cache_file: Path, key: str) -> list[Any] | None:
    try:
        cached = json.loads(cache_file.read_bytes())
        return cached["exported"] if cached["key"] == key else None
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _store(cache_file: Path, key: str, exported: Exported) -> list[Any]:
    structure = [
        [sorted(needed), {module: sorted(names) for module, names in modules.items()}]
        for needed, modules in exported.items()
    ]
    if not sys.dont_write_bytecode:
        unfinished = cache_file.with_suffix(f".{os.getpid()}")
        try:
            cache_file.parent.mkdir(parents=True, exist_ok=True)
            unfinished.write_text(json.dumps({"key": key, "exported": structure}), encoding="utf-8")
            unfinished.replace(cache_file)
        except OSError:  # the next process reads the files again
            with suppress(OSError):
                unfinished.unlink()
    return structure
