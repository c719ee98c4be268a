"""Shapes of arrays in signatures: `Float64[np.ndarray, "row"]`, a dtype, an array type and named dimensions.

If jaxtyping has been imported, as in all tests, these are its types and shapes are checked. Otherwise an
annotation is only the array type, so that programs do not pay for the import.
"""

import sys
from typing import TYPE_CHECKING, Any

__all__ = [
    "Bool",
    "Float",
    "Float32",
    "Float64",
    "Int",
    "Int32",
    "Int64",
    "Num",
    "Real",
    "Shaped",
    "UInt8",
    "UInt16",
    "UInt32",
    "UInt64",
]

if TYPE_CHECKING or "jaxtyping" in sys.modules:
    from jaxtyping import (
        Bool,
        Float,
        Float32,
        Float64,
        Int,
        Int32,
        Int64,
        Num,
        Real,
        Shaped,
        UInt8,
        UInt16,
        UInt32,
        UInt64,
    )
else:

    class _Unchecked:
        def __class_getitem__(cls, array_and_shape: tuple[Any, str]) -> Any:
            return array_and_shape[0]

    Bool = Float = Float32 = Float64 = Int = Int32 = Int64 = _Unchecked
    Num = Real = Shaped = UInt8 = UInt16 = UInt32 = UInt64 = _Unchecked
