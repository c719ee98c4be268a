"""Shapes of arrays in signatures: `Float64[np.ndarray, "row"]`, a dtype, an array type and named dimensions.

They are jaxtyping's where that has been imported, which all tests do, and check them. A program checks none and
does not pay for the import: to it, such an annotation is the array's type alone.
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
