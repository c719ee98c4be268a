"""What a rank imports, imported once by the fork server so that each rank starts with it done.

Imports only: no thread may exist and no device be touched before a fork. Methods are imported when they are
asked for, which for a rank is too late: a restart would take three times as long.

What is imported stays, so nothing is to be collected meanwhile (a seventh of the time), nor in the ranks later.
"""

import gc
import sys
import time

from assay.elastic import import_time

import_time.began_s = time.monotonic()
gc.disable()


class _NoPandas:
    """pyarrow looks for pandas once, as soon as it makes an array, and imports it where it is installed.

    Ranks have no use for it: half a second before every first step.
    """

    @staticmethod
    def find_spec(name: str, *_: object) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("ranks do without")


sys.meta_path.insert(0, _NoPandas)
import numpy.ma  # noqa: E402  # pyarrow looks whether an array of numbers is one with a mask
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
