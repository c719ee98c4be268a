"""What ranks tell one another besides tensors: values, and nothing that runs.

Torch's collectives of objects (DCP's plans go by them, and so do our failures, witnesses and predictions) are
pickles, which run what they name, and the line between ranks knows no key. So a rank takes in data, arrays and
classes that hold them: who got among the ranks can spoil their numbers, but has no hand in their process.
"""

import pickle
import sys
from dataclasses import is_dataclass
from enum import Enum
from typing import Any

import torch
from pydantic import BaseModel
from torch.distributed import distributed_c10d

_OURS = ("assay.", "torch.distributed.checkpoint.")
"""Packages whose plain classes hold what is said."""

_ADMITTED = {
    "builtins": {"bytearray", "complex", "range", "slice"},
    "collections": {"OrderedDict"},
    "numpy": {"dtype", "ndarray"},
    "numpy._core.multiarray": {"_reconstruct", "scalar"},
    "pyarrow.lib": {
        "_reconstruct_table", "_restore_array", "chunked_array", "field", "py_buffer", "schema",
        "binary", "decimal128", "decimal256", "dictionary", "large_list", "list_", "map_", "struct",
        "timestamp", "type_for_alias",
    },
    "torch": {"Size", "device"},
    "torch.serialization": {"_get_layout"},
    "traceback": {"FrameSummary", "StackSummary"},
}  # fmt: skip


def take_in_values_only() -> None:
    """From now on, collectives of objects in this process admit values only."""
    distributed_c10d._unpickler = _ValueUnpickler


class _ValueUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str, /) -> Any:
        if name in _ADMITTED.get(module, ()):
            return super().find_class(module, name)
        found = getattr(sys.modules.get(module), name, None)  # what is not imported by now is none of ours
        if isinstance(found, torch.dtype) or _holds_values(found, module):
            return found
        raise pickle.UnpicklingError(f"another rank said what is no value: it asks for {module}.{name}")


def _holds_values(found: Any, module: str) -> bool:
    if not isinstance(found, type):
        return False
    is_plain = is_dataclass(found) or issubclass(found, Enum | tuple | BaseModel)
    return issubclass(found, BaseException) or (is_plain and module.startswith(_OURS))
