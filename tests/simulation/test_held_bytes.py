"""Files of equal bytes come and go, on servers that take turns and lose power anywhere: what is a file can be
read, and what is none leaves nothing behind."""

import hashlib
import random

import pytest

from assay.records.uploaded_file import BytesHeld, FileCreated
from assay.serving.blob_references import STALE_UPLOAD_S, BlobReferences
from assay.serving.files import FileDamagedError, FileRepository
from assay.serving.ids import new_id
from assay.store.objects import ObjectStore, open_store
from clocks import ManualClock
from interleaving import OffClock, Stage
from power_cut_store import PowerCut, PowerCutStore
from variants import slow, soaked

TEXTS = (b"one", b"two")
FILES = tuple(f"file-{n:024x}" for n in range(4))
Step = tuple[str, str, bytes]
"""What is done (`put` or `remove`), to which file, of which bytes."""


def drawn_steps(rng: random.Random, num_steps: int) -> list[Step]:
    """Each file is put before it is removed, and has the same bytes whenever it is put again."""
    texts = {file_id: rng.choice(TEXTS) for file_id in FILES}
    steps = [("put", file_id, texts[file_id]) for file_id in rng.sample(FILES, rng.randrange(2, 5))]
    for _ in range(num_steps):
        file_id = rng.choice(FILES)
        steps.append((rng.choice(["put", "remove"]), file_id, texts[file_id]))
    return steps


def do(files: FileRepository, step: Step, clock) -> None:
    """As a server does it."""
    verb, file_id, data = step
    if verb == "remove":
        if files.find(file_id, "p") is not None:
            files.remove(file_id)
        return
    sink = files.sink(name := new_id("file", clock.now_s()))
    sink.write(data)
    sink.finish()
    files.put(
        FileCreated(
            file_id=file_id, project="p", at_s=1.0, filename="f", purpose="evals", num_bytes=len(data),
            sha256=sink.sha256, content=name,
        )
    )  # fmt: skip


def check(store: ObjectStore, texts: dict[str, bytes]) -> None:
    """Two days later, when whatever was cut off was swept."""
    clock = ManualClock(1e9 + 3 * STALE_UPLOAD_S)
    files = FileRepository(store, clock)
    check_readable(files, texts)
    files.sweep()
    present = check_readable(files, texts)
    lie = [item.key.removeprefix("bytes/") for item in store.list("bytes/")]
    assert sorted(lie) == sorted({created.content for created in present}), "no more than the files need"
    assert len(lie) == len({store.get(f"bytes/{name}") for name in lie}), "equal bytes lie once"
    ids = {created.file_id for created in present}
    assert {item.key for item in store.list("open/")} <= {f"open/file/{id_}" for id_ in ids}
    assert {element for element in files.newest("p") if files.find(element, "p") is not None} == ids


def check_readable(files: FileRepository, texts: dict[str, bytes]) -> list[FileCreated]:
    present = [state.created for file in FILES if (state := files.find(file, "p")) is not None]
    for created in present:
        data = b"".join(files.blocks(created.file_id))
        assert (data, created.sha256) == (texts[created.file_id], hashlib.sha256(data).hexdigest())
    return present


@pytest.mark.parametrize("seed", [*range(3), *slow(*range(3, 8)), *soaked(*range(8, 400))])
def test_the_power_is_cut_at_any_write(seed: int) -> None:
    rng = random.Random(seed)
    steps = drawn_steps(rng, 6)
    texts = {file_id: data for _, file_id, data in steps}
    for cut in range(60):
        inner = open_store("memory:")
        clock = ManualClock(1e9)
        left, store = [*steps], PowerCutStore(inner, writes_left=cut, rng=rng)
        while left:
            clock.sleep_s(1)
            try:
                do(FileRepository(store, clock), left[0], clock)
            except PowerCut:  # the client asks for it again, or never
                store = PowerCutStore(inner, writes_left=10_000, rng=rng)
                if rng.random() < 0.5:
                    continue
            left.pop(0)
        check(inner, texts)


def simulate(seed: int) -> tuple[ObjectStore, dict[str, bytes]]:
    """Three servers by turns, each with its files, all of them of the same bytes; they may stop anywhere."""
    rng = random.Random(seed)
    stage = Stage(seed, tick_s=0.01, num_steps=rng.choice([60, 200, 10_000]), nap_s=0.5)
    store = open_store("memory:")
    for number in range(3):
        own = [("put", FILES[number], b"same"), ("remove", FILES[number], b"same")]
        steps = own[: rng.randrange(1, 3)]
        if rng.random() < 0.3:
            pair = [("put", FILES[3], b"same"), ("remove", FILES[3], b"same")]  # the same file on two servers
            steps = [*pair[: rng.randrange(1, 3)], *steps]

        def serve(clock: OffClock, its: ObjectStore, steps: list[Step] = steps) -> None:
            files = FileRepository(its, clock)
            for step in steps:
                do(files, step, clock)

        stage.add(serve, store, OffClock(stage, ahead_s=rng.uniform(-1, 1)))
    stage.play()
    return store, dict.fromkeys(FILES, b"same")


@pytest.mark.parametrize("seed", [*range(60), *soaked(*range(60, 2000))])
def test_servers_take_turns_at_equal_bytes(seed: int) -> None:
    check(*simulate(seed))


def test_whoever_takes_bytes_that_were_released_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(self: BlobReferences, name: str, *, file_id: str, sha256: str) -> str:
        self._store.put(f"open/bytes/{name}.{file_id}.{sha256}", b"")

        def decide(now):
            if now is not None and file_id in now.holders:
                return None
            return BytesHeld(at_s=1.0, file_id=file_id, content=name if now is None else now.content)

        return self._log(sha256).append(decide).content

    monkeypatch.setattr(BlobReferences, "hold", careless)

    def is_caught(seed: int) -> bool:
        try:
            check(*simulate(seed))
        except FileDamagedError as error:
            return "are gone" in str(error)
        return False

    assert any(is_caught(seed) for seed in range(40))
