"""What a rank imports, imported once by the fork server so that each rank starts with it done.

Imports only: no thread may exist and no device be touched before a fork. Methods are imported when they are
asked for, which for a rank is too late: a restart would take three times as long.
"""

import assay.launch.ranks.wiring
from assay.training.methods.registry import import_all_methods

import_all_methods()

__all__ = ["assay"]
