"""From a promising pilot to decision-ready evidence.

The names below are the public Python API (docs/python.md). Each is loaded when it is first used.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from assay.api import (
        AssayError,
        Campaign,
        Curve,
        Dataset,
        Recipe,
        Report,
        Run,
        compare,
        decide,
        observe,
        overview,
        record,
        run,
        runs,
        train,
    )

__all__ = [
    "AssayError",
    "Campaign",
    "Curve",
    "Dataset",
    "Recipe",
    "Report",
    "Run",
    "compare",
    "decide",
    "observe",
    "overview",
    "record",
    "run",
    "runs",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'assay' has no attribute '{name}'")
    from assay import api

    return getattr(api, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
