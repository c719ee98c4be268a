import errno
import os
import stat
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
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
def test_a_full_disk_is_named_with_its_cure_and_what_was_there_stays(tmp_path: Path, monkeypatch, write: str) -> None:
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


def test_what_vanishes_while_a_folder_is_listed_or_written_is_no_error(tmp_path: Path) -> None:
    store, errors = FolderStore(tmp_path), []

    def again_and_again(call: Callable[[int], object]) -> None:
        try:
            for number in range(400):
                call(number)
        except StoreError as error:
            errors.append(error)

    def put_and_delete(folder: int) -> Callable[[int], None]:
        def call(number: int) -> None:
            store.put_if_absent(f"checkpoints/{folder}/{number}", b"x")
            store.delete(f"checkpoints/{folder}/{number}")

        return call

    calls = [
        put_and_delete(0),
        put_and_delete(0),
        put_and_delete(1),
        lambda _: list(store.list("checkpoints/")),
    ]
    with ThreadPoolExecutor(len(calls)) as pool:
        list(pool.map(again_and_again, calls))
    assert errors == []


def test_a_folder_that_another_makes_and_deletes_within_a_write_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, folder, times = FolderStore(tmp_path), tmp_path / "checkpoints", []
    mkdir = os.mkdir

    def another_is_faster(path: "str | os.PathLike[str]", *args: int) -> None:
        if Path(path) != folder or times:
            return mkdir(path, *args)
        times.append(path)
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))

    monkeypatch.setattr(os, "mkdir", another_is_faster)
    assert store.put_if_absent("checkpoints/7", b"x") and times == [folder]
    assert store.get("checkpoints/7") == b"x"


def test_a_file_where_a_folder_belongs_is_refused(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_bytes(b"")
    with pytest.raises(StoreError, match="checkpoints/7: cannot write it"):
        FolderStore(tmp_path).put("checkpoints/7", b"x")


def test_what_dead_writers_left_half_written_is_swept_and_nothing_else(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    for folder in ("log", "checkpoints/00000004-0001", "checkpoints/00000008-0002"):
        store.put(f"{folder}/whole", b"x")
        (tmp_path / folder / ".unfinished-weights-1-1").write_bytes(b"half")
    old_s = time.time() - 7200
    os.utime(tmp_path / "log/.unfinished-weights-1-1", (old_s, old_s))
    request = []

    def is_dead(folder: str, age_s: float) -> bool:
        request.append(folder)
        return age_s > 3600 or folder.endswith("-0001")

    store.sweep_unfinished(is_dead, lambda folder: False)
    left = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file())
    assert left == [
        "checkpoints/00000004-0001/whole",
        "checkpoints/00000008-0002/.unfinished-weights-1-1",
        "checkpoints/00000008-0002/whole",
        "log/whole",
    ]
    assert sorted(request) == ["checkpoints/00000004-0001", "checkpoints/00000008-0002", "log"]


def test_a_folder_that_was_moved_is_not_made_anew_in_its_old_place(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "run")
    store.put("log/0", b"first")
    (tmp_path / "run").rename(tmp_path / "moved")
    for write in (lambda: store.put("log/1", b"x"), lambda: store.put_if_absent("log/1", b"x")):
        with pytest.raises(StoreError, match="moved, deleted or unmounted while it was written to"):
            write()
    assert not (tmp_path / "run").exists()
    (tmp_path / "moved").rename(tmp_path / "run")
    store.put("log/1", b"second")


def test_nothing_is_deleted_or_written_behind_a_link_to_a_folder(tmp_path: Path) -> None:
    expected = tmp_path / "theirs"
    expected.mkdir()
    (expected / "weights").write_bytes(b"x")
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "run" / "checkpoints" / "00000004-0001").symlink_to(expected)
    store = FolderStore(tmp_path / "run")
    store.delete("checkpoints/00000004-0001/weights")
    assert (expected / "weights").exists() and store.get("checkpoints/00000004-0001/weights") == b"x"
    writes = (store.put, store.put_if_absent)
    for write in writes:
        with pytest.raises(StoreError, match=r"00000004-0001 is a link to .*Remove it"):
            write("checkpoints/00000004-0001/deep/weights", b"y")
    assert [path.name for path in expected.iterdir()] == ["weights"]


@pytest.mark.parametrize("flag", ["i", "a"])
def test_a_folder_that_may_not_be_changed_is_called_so_and_not_without_links(tmp_path: Path, flag: str) -> None:
    (tmp_path / "log").mkdir()
    if subprocess.run(["chattr", f"+{flag}", tmp_path / "log"], capture_output=True, check=False).returncode:
        pytest.skip("needs root, and a file system with attributes")
    try:
        with pytest.raises(StoreError, match="immutable or append-only") as failed:
            FolderStore(tmp_path).put("log/0", b"x")
        assert "hard links" not in str(failed.value)
    finally:
        subprocess.run(["chattr", f"-{flag}", tmp_path / "log"], check=True)


@pytest.mark.parametrize("number", [errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP])
def test_a_file_system_without_links_is_refused_by_name(tmp_path: Path, monkeypatch, number: int) -> None:
    def fails(source: object, target: object) -> None:
        raise OSError(number, os.strerror(number), str(source), None, str(target))

    monkeypatch.setattr("os.link", fails)
    with pytest.raises(StoreError, match=r"log/0: cannot write it: .*\(--store\)"):
        FolderStore(tmp_path).put_if_absent("log/0", b"x")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
