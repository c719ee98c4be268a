"""What an engine imports, imported once by the server that engines are forked from: a model is loaded at once.

Imports only: no thread may exist and no device be touched before a fork. What is imported stays, so nothing
is to be collected meanwhile, nor in the engines later.
"""

import gc

gc.disable()

import assay.workers.engine.process  # noqa: E402
from assay.training.methods.registry import import_all_methods  # noqa: E402

import_all_methods()

gc.freeze()
gc.enable()

__all__ = ["assay"]
