"""Imports the modules of a rank once in the fork server, so that a forked rank starts with them loaded.

Imports only: before a fork, no thread may exist and no device may be initialized. Methods are usually imported
lazily; in a rank, that would make a restart three times as long.

Garbage collection is off during the imports (a seventh of their time). Imported objects are frozen, so ranks do not
scan them either.
"""

import gc
import sys
import time

from assay.elastic import import_time

import_time.began_s = time.monotonic()
gc.disable()


class _NoPandas:
    """Hides pandas from pyarrow, which imports it with its first array if it is installed.

    Ranks do not use pandas, and its import takes half a second.
    """

    @staticmethod
    def find_spec(name: str, *_: object) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("ranks do not use pandas")


sys.meta_path.insert(0, _NoPandas)
import numpy.ma  # noqa: E402  # pyarrow imports it to detect masked arrays
import pyarrow.dataset  # noqa: E402
import pyarrow.pandas_compat  # noqa: E402
import pyarrow.parquet  # noqa: E402

pyarrow.array([0])
sys.meta_path.remove(_NoPandas)

from assay.models.lean_transformers import lean_transformers  # noqa: E402

with lean_transformers():
    import assay.elastic.rank_setup
    from assay.training.methods.registry import import_all_methods

    import_all_methods()

gc.freeze()
gc.enable()
import_time.ended_s = time.monotonic()

__all__ = ["assay", "numpy"]
