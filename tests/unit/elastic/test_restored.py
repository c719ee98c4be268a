"""Where an attempt goes on."""

from types import SimpleNamespace
from typing import Any

import pytest

from assay.base.errors import DamagedDataError
from assay.elastic.rank_setup import _restored
from assay.records.cursor import Cursor


class Loading:
    """A saver that has nothing to load, and a loader of ten steps an epoch, five a window."""

    geometry = SimpleNamespace(window_steps=5)

    def restore(self, commit: Any) -> None: ...

    def cursor_at(self, step: int) -> Cursor:
        return Cursor(epoch=step // 10, step_in_epoch=step % 10)


def test_a_cursor_that_is_not_its_steps_is_not_gone_on_from() -> None:
    parts: Any = Loading()
    commit: Any = SimpleNamespace(
        step=13,
        cursor=Cursor(epoch=1, step_in_epoch=3),
        folder="checkpoints/13",
        quarantined=[SimpleNamespace(row_group=7)],
    )
    assert _restored(parts, commit, parts) == (13, commit.cursor, {7})
    commit.cursor = Cursor(epoch=1, step_in_epoch=4)
    with pytest.raises(DamagedDataError, match=r"checkpoints/13: .* Resuming would skip or repeat rows"):
        _restored(parts, commit, parts)
