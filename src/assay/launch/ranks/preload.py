"""What a rank imports, imported once by the fork server so that each rank starts with it done.

Imports only: no thread may exist and no device be touched before a fork. Methods are imported when they are
asked for, which for a rank is too late: a restart would take three times as long; and scipy by an evaluation.
pandas is what
pyarrow imports, where it is installed, as soon as it makes an array.

What is imported stays, so nothing is to be collected meanwhile (a seventh of the time), nor in the ranks later.
"""

import gc
from contextlib import suppress

gc.disable()

import scipy.stats  # noqa: E402

import assay.launch.ranks.wiring  # noqa: E402
from assay.training.methods.registry import import_all_methods  # noqa: E402

import_all_methods()
with suppress(ImportError):
    import pandas  # noqa: F401
    import pyarrow.pandas_compat
    import pyarrow.vendored.version  # noqa: F401

gc.freeze()
gc.enable()

__all__ = ["assay", "scipy"]
