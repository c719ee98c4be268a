"""Restricts collectives of objects to plain values: nothing that ranks send each other runs code.

torch's object collectives (used by DCP's plans, and by our failures, spot checks and predictions) are pickles,
which run what they name, and connections between ranks are not authenticated. So a rank accepts data, arrays
and classes that hold them: an attacker among the ranks can corrupt numbers but cannot execute code.
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
"""Packages whose plain data classes are accepted."""

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
    """Make object collectives in this process accept values only."""
    distributed_c10d._unpickler = _ValueUnpickler


class _ValueUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str, /) -> Any:
        if name in _ADMITTED.get(module, ()):
            return super().find_class(module, name)
        found = getattr(sys.modules.get(module), name, None)  # our classes are imported by now
        if isinstance(found, torch.dtype) or _holds_values(found, module):
            return found
        raise pickle.UnpicklingError(f"another rank sent an object that is no plain value: {module}.{name}")


def _holds_values(found: Any, module: str) -> bool:
    if not isinstance(found, type):
        return False
    is_plain = is_dataclass(found) or issubclass(found, Enum | tuple | BaseModel)
    return issubclass(found, BaseException) or (is_plain and module.startswith(_OURS))
