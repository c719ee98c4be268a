"""transformers, imported without what training has no use for, and without reading all of it.

It imports SciPy, where that is installed, for losses of models that find things in pictures: a tenth of all
that a rank imports. And it reads the source of all its models, 2,500 files, twice, to learn which names they
export: as much again. The answer is kept where Python keeps our bytecode, under the sizes and times of those
files, as bytecode is: what is changed is read again.
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
"""Its function that says what a package of modules exports."""

Exported = Mapping[frozenset[str], Mapping[str, set[str]]]
"""Packages that are needed -> module -> names that it exports, as transformers has it."""


@contextmanager
def lean_transformers() -> Iterator[None]:
    """In here transformers may be imported for the first time; afterwards all is there for who asks for it."""
    hides_scipy = "scipy" not in sys.modules
    if hides_scipy:
        sys.modules["scipy"] = None  # type: ignore[assignment]  # who looks for it finds that it is not there
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        if hides_scipy:
            del sys.modules["scipy"]
        looked: Any = getattr(sys.modules.get(READER), "is_scipy_available", None)
        if hasattr(looked, "cache_clear"):
            looked.cache_clear()  # a model that is loaded later may want it


class _Finder:
    """Finds the module in which transformers reads its models."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:  # noqa: ARG004
        spec = PathFinder.find_spec(name, path) if name == READER else None
        if spec is None or spec.origin is None:
            return None
        spec.loader = _Loader(name, spec.origin)
        return spec


class _Loader(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        cache_file = Path(cache_from_source(__file__)).with_suffix(".models.json")
        names = vars(module)
        if READ_FUNCTION in names:  # another transformers may have another way
            names[READ_FUNCTION] = cached_reader(names[READ_FUNCTION], Path(self.path), cache_file)


def cached_reader(read: Callable[..., Exported], reader: Path, cache_file: Path) -> Callable[..., Exported]:
    """Who reads as transformers' `read` does (the file `reader` has its source), but all models once only.

    `cache_file`: the file that keeps the answer from one process to the next, where it can be written.
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
    """Stands for all that the answer hangs on: names, sizes and times of the files."""
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
        except OSError:  # it is read again next time
            with suppress(OSError):
                unfinished.unlink()
    return structure
