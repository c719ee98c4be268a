"""What a rank imports, imported once by the fork server so that each rank starts with it done.

Imports only: no thread may exist and no device be touched before a fork. Methods are imported when they are
asked for, which for a rank is too late: a restart would take three times as long. pandas is what
pyarrow imports, where it is installed, as soon as it makes an array.
"""

from contextlib import suppress

import assay.launch.ranks.wiring
from assay.training.methods.registry import import_all_methods

import_all_methods()
with suppress(ImportError):
    import pandas  # noqa: F401
    import pyarrow.pandas_compat
    import pyarrow.vendored.version  # noqa: F401

__all__ = ["assay"]
