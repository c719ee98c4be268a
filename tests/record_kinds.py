"""Every kind of record that there is, found by walking the package."""

import importlib
import pkgutil
from collections.abc import Iterator
from functools import cache

import assay
from assay.records.record import Record

WITHOUT_RECORDS = ("assay.models.kernels.", "assay.integrations.lightning")
"""Modules that are imported where Triton or Lightning is installed; they hold no records."""


@cache
def record_kinds() -> dict[str, type[Record]]:
    """Kind -> its class; an assertion where two classes share a kind."""
    for module in pkgutil.walk_packages(assay.__path__, "assay."):
        if not module.name.startswith(WITHOUT_RECORDS):
            importlib.import_module(module.name)
    found: dict[str, type[Record]] = {}
    for record_class in _subclasses(Record):
        if record_class.__module__.startswith("assay.") and vars(record_class).get("kind"):
            assert found.setdefault(record_class.kind, record_class) is record_class, record_class.kind
    return found


def _subclasses(record_class: type[Record]) -> Iterator[type[Record]]:
    for subclass in record_class.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)
