"""Imports of engines, done once in the server that engines are forked from.

Only imports: no thread may exist and no device may be used before a fork. Garbage collection of the imported modules is
frozen, so that their memory pages stay shared.
"""

import gc

gc.disable()

from assay.models.lean_transformers import lean_transformers  # noqa: E402

with lean_transformers():
    import assay.workers.engine.process
    from assay.training.methods.registry import import_all_methods

    import_all_methods()

gc.freeze()
gc.enable()

__all__ = ["assay"]
