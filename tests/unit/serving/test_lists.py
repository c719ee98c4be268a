"""What a page costs, and that it goes on where it was."""

import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.records.uploaded_file import FileCreated
from assay.serving import repository
from assay.serving.ids import created_s, id_of_index_key, index_key, new_id
from assay.serving.openai.app_state import AppState
from assay.serving.repository import NamesBackwards
from assay.store.faulty import FlakyStore
from assay.store.objects import open_store
from served import app_in, http_of, sdk_of
from variants import soaked

NOW_S = 1_800_000_000.0


class CountingStore(FlakyStore):
    """Counts what is asked for, and the names that are listed."""

    def __init__(self) -> None:
        super().__init__(open_store("memory:"))
        self.cost: Counter[str] = Counter()

    def list(self, prefix, after="", limit=None):
        found = list(super().list(prefix, after, limit))
        self.cost["listed"] += len(found)
        return iter(found)

    def get(self, key):
        self.cost["read"] += 1
        return super().get(key)

    def exists(self, key):
        self.cost["looked up"] += 1
        return super().exists(key)


def a_file(app: AppState, project: str = "default") -> str:
    """A file without its bytes: only lists are asked for it."""
    now_s = app.clock.now_s()
    created = FileCreated(
        file_id=new_id("file", now_s), project=project, at_s=now_s, filename="f", purpose="evals", num_bytes=0,
        sha256="ab" * 32, content=new_id("file", now_s),
    )  # fmt: skip
    repository.ResourceRepository.put(app.files, created)
    return created.file_id


def listed(app: AppState, **query: Any) -> dict[str, Any]:
    response = http_of(app).get("/v1/files", params=query)
    assert response.status_code == 200, response.text
    return response.json()


def test_a_page_costs_its_own_things_whatever_else_there_is(tmp_path: Path) -> None:
    store = CountingStore()
    app = app_in(tmp_path, store)
    costs = []
    for num_more in (30, 1000):
        for number in range(num_more):
            app.clock.sleep_s(0.7)
            a_file(app, "default" if number % 3 else "another")
        page = listed(app, limit=5)
        app = app_in(tmp_path, store)  # a server that has read nothing yet
        app.clock.sleep_s(10_000)
        store.cost.clear()
        behind = listed(app, limit=5, after=page["last_id"])
        assert len(behind["data"]) == 5
        costs.append(dict(store.cost))
    assert costs[0]["read"] == costs[1]["read"] == 6  # one more says whether there are more
    assert costs[1]["listed"] <= repository.NAMES_AT_ONCE + 6
    store.cost.clear()
    listed(app, limit=5, after=page["last_id"])
    assert (store.cost["read"], store.cost["looked up"]) == (0, 6)  # what was read is looked at


@settings(max_examples=60, deadline=None)
@given(
    at_ms=st.lists(st.sampled_from([1, 2, 3, 17, 400, 70_000, 9_000_000, 2**43]), max_size=30),
    at_once=st.integers(1, 5),
    behind=st.integers(0, 30),
)
def test_names_are_read_from_the_oldest_on(at_ms: list[int], at_once: int, behind: int) -> None:
    """However they lie in time: `at_ms` are milliseconds."""
    store = open_store("memory:")
    ids = sorted(new_id("file", m / 1000) for m in at_ms)
    for id_ in [*ids, new_id("file", 5.0)]:
        store.put(index_key("ours" if id_ in ids else "theirs", id_), b"")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(repository, "NAMES_AT_ONCE", at_once)
        names = NamesBackwards(store, "file", "ours")
        cursor = index_key("ours", ids[behind]) if behind < len(ids) else None
        found = [id_of_index_key("file", item) for item in names.before(cursor)]
    assert found == ([id_ for id_ in ids if id_ > ids[behind]] if cursor else ids)


def test_a_page_of_the_oldest_costs_no_more_where_there_are_many(tmp_path: Path) -> None:
    costs = []
    for num_more in (400, 8000):
        store = CountingStore()
        app = app_in(tmp_path, store)
        oldest = []
        for _ in range(12):
            app.clock.sleep_s(60.0)
            oldest.append(a_file(app))
        for number in range(num_more):  # names alone: none of them is shown
            store.put(index_key("default", new_id("file", app.clock.now_s() + 1 + number * 40)), b"")
        app = app_in(tmp_path, store)  # a server that has read nothing yet
        store.cost.clear()
        page = listed(app, limit=5, order="asc", after=oldest[1])
        assert [item["id"] for item in page["data"]] == oldest[2:7]
        assert store.cost["read"] == 6
        costs.append(store.cost["listed"])
    assert costs[1] <= costs[0] + repository.NAMES_AT_ONCE


def test_a_folder_reads_few_folders_for_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = app_in(tmp_path, open_store(str(tmp_path / "api")))
    index = tmp_path / "api"
    for number in range(600):  # marks alone: as many as four seconds, a day and a year have of them
        step_s = (0.01, 600.0, 200_000.0)[number % 3]
        path = index / index_key("default", new_id("file", NOW_S - number * step_s))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    seen: Counter[str] = Counter()
    scandir = os.scandir

    class Counted:
        def __init__(self, folder: Any) -> None:
            seen["folders"] += 1
            self.inside = scandir(folder)

        def __enter__(self):
            return self

        def __exit__(self, *_: object) -> None:
            self.inside.close()

        def __iter__(self):
            for entry in self.inside:
                seen["names"] += 1
                yield entry

    monkeypatch.setattr("assay.store.objects.os.scandir", Counted)
    found = [*app.files.store.list("index/file/default/", limit=20)]
    assert len(found) == 20 and seen["folders"] < 30
    ids = [id_of_index_key("file", item.key) for item in found]
    assert ids == sorted(ids, reverse=True) and created_s(ids[0]) == NOW_S


@pytest.mark.parametrize("requested", ["nonsense", "ftjob-" + "0" * 24, "../../x"])
def test_a_cursor_that_is_none_is_not_found(tmp_path: Path, requested: str) -> None:
    response = http_of(app_in(tmp_path)).get("/v1/files", params={"after": requested})
    assert (response.status_code, response.json()["error"]["param"]) == (404, "after")


class Reader:
    """Reads a list page by page."""

    def __init__(self, app: AppState, order: str) -> None:
        self.app, self.order = app, order
        self.seen: list[str] = []
        self.has_more = True

    def read(self, limit: int) -> None:
        cursor = {"after": self.seen[-1]} if self.seen else {}
        page = listed(self.app, limit=limit, order=self.order, **cursor)
        self.seen += [item["id"] for item in page["data"]]
        self.has_more = page["has_more"]


def check_walk(app: AppState, existing: list[str], rng: Any, order: str, *, limit: int, changes: int) -> None:
    """Files come and go between the pages; those that stay are seen once each, in their order."""
    reader, gone = Reader(app, order), set()
    while reader.has_more:
        reader.read(rng.randint(1, limit))
        for _ in range(rng.randint(0, changes)):
            if rng.random() < 0.5:
                app.clock.sleep_s(rng.choice([0.0, 0.001, 3.0]))
                a_file(app)
            elif existing:
                gone.add(one := existing[rng.randrange(len(existing))])
                app.files.remove(one)
        if len(reader.seen) > 3 * len(existing) + 100:  # with the oldest first, what comes is met again and again
            changes = 0
    assert len(set(reader.seen)) == len(reader.seen)
    stayed = sorted(set(existing) - gone, reverse=order == "desc")
    assert [item for item in reader.seen if item in set(stayed)] == stayed


@pytest.mark.slow
@settings(max_examples=6, deadline=None)
@given(rng=st.randoms(use_true_random=False), size=st.integers(0, 40), order=st.sampled_from(["desc", "asc"]))
def test_nothing_that_stayed_is_missed_or_doubled(
    tmp_path_factory: pytest.TempPathFactory, rng: Any, size: int, order: str
) -> None:
    app = app_in(tmp_path_factory.mktemp("walk"))
    existing = []
    for _ in range(size):
        app.clock.sleep_s(rng.choice([0.0, 0.001, 2.0, 2_000.0]))
        existing.append(a_file(app))
    check_walk(app, existing, rng, order, limit=9, changes=4)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [0, *soaked(1, 2)])
def test_nothing_of_ten_thousand_that_stayed_is_missed_or_doubled(tmp_path: Path, seed: int) -> None:
    app, rng = app_in(tmp_path), random.Random(seed)
    existing: list[str] = []
    for _ in range(10_000):
        app.clock.sleep_s(rng.choice([0.0, 0.001, 0.5]))
        existing.append(a_file(app))
    check_walk(app, existing, rng, "desc", limit=400, changes=60)


def test_what_is_kept_in_memory_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repository, "MAX_BYTES", 10_000)
    monkeypatch.setattr(repository, "EVICTION_CHECK_INTERVAL", 1)
    app = app_in(tmp_path)
    created_ids = [a_file(app) for _ in range(100)]
    logs = app.files._logs
    assert sum(log.num_bytes for log in logs.values()) <= 11_000
    assert created_ids[-1] in logs and created_ids[0] not in logs
    assert sdk_of(app).files.retrieve(created_ids[0]).id == created_ids[0]  # read again
    assert created_ids[0] in logs


def test_a_key_costs_one_look_and_is_revoked_at_once_by_whomever(tmp_path: Path) -> None:
    store = CountingStore()
    app, elsewhere = app_in(tmp_path, store), app_in(tmp_path, store)
    keys = [app.keys.make(project="p", name="", scopes=("read",), lives_s=None) for _ in range(20)]
    one = keys[7]
    assert app.keys.any_exist() and app.keys.opening(one.secret) == one.created
    store.cost.clear()
    assert app.keys.any_exist() and app.keys.opening(one.secret) == one.created
    assert dict(store.cost) == {"looked up": 1}
    elsewhere.keys.revoke(one.created.key_id)  # by another process
    assert app.keys.opening(one.secret) is None
    assert app.keys.opening(keys[8].secret) == keys[8].created
    store.cost.clear()
    assert app.keys.opening("sk-assay-" + "0" * 64) is None
    assert dict(store.cost) == {"looked up": 1}
