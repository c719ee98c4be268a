"""Permissions that hold for root, too: without the capabilities that pass them over."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from unittest.mock import patch

from assay.store import retry_policy

_VERSION_3 = 0x20080522
_PASS_OVER = 1 << 1 | 1 << 2
"""CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH."""


@contextmanager
def permissions_hold() -> Iterator[None]:
    """Within, this thread and those that it starts may write only where the permissions say so.

    So no call of a store is made by a thread of before, nor one afterwards by a thread of within.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    ours, before = (ctypes.c_uint32 * 2)(_VERSION_3, 0), (ctypes.c_uint32 * 6)()
    assert libc.capget(ours, before) == 0, ctypes.get_errno()
    effective, *rest = before
    assert libc.capset(ours, (ctypes.c_uint32 * 6)(effective & ~_PASS_OVER, *rest)) == 0, ctypes.get_errno()
    try:
        with patch.object(retry_policy, "_IDLE", []):
            yield
    finally:
        assert libc.capset(ours, before) == 0, ctypes.get_errno()


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Within, nobody may write to a folder, or to anything in it."""
    modes = {}
    for path in [folder, *folder.rglob("*")]:
        with suppress(FileNotFoundError):  # what SQLite reads with goes when it is closed
            modes[path] = path.lstat().st_mode
            path.chmod(modes[path] & ~0o222)
    try:
        with permissions_hold():
            yield
    finally:
        for path, mode in modes.items():
            with suppress(FileNotFoundError):
                path.chmod(mode)
