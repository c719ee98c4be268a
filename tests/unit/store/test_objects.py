import errno
import os
import stat
from pathlib import Path

import pytest

from assay.base.errors import StoreError
from assay.store.objects import FolderStore


def test_what_is_being_written_is_never_listed(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    with store.open_writer("a/b") as writer:
        writer.write(b"half")
        assert list(store.list("")) == []
    assert list(store.list("")) == [("a/b", 4)]


def test_a_write_is_on_the_disk_with_its_names_before_it_is_reported(tmp_path: Path, monkeypatch) -> None:
    synced: list[Path] = []
    fsync = os.fsync

    def note(handle: int) -> None:
        is_folder = stat.S_ISDIR(os.fstat(handle).st_mode)
        synced.append(Path(f"/proc/self/fd/{handle}").readlink() if is_folder else Path("file"))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", note)
    assert FolderStore(tmp_path).put_if_absent("log/deep/1", b"commit")
    assert synced == [tmp_path, tmp_path / "log", Path("file"), tmp_path / "log" / "deep"]


@pytest.mark.parametrize("write", ["put", "put_if_absent"])
def test_a_full_disk_is_named_with_its_cure_and_what_was_there_stays(
    tmp_path: Path, monkeypatch, write: str
) -> None:
    store = FolderStore(tmp_path)
    store.put("a", b"before")

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match=r"a: cannot write it: No space left.*free some space"):
        getattr(store, write)("a", b"after")
    assert store.get("a") == b"before"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_path_that_cannot_be_a_folder_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreError, match=r"file/key: cannot write it: (Not a directory|File exists)"):
        FolderStore(tmp_path / "file").put("key", b"x")
