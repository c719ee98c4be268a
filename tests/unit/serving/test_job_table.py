"""Jobs that are over are listed from a table, and a list never says anything else than the job itself."""

import json
import math
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.records.fine_tuning_job import JobCharged, JobClaimed, JobCreated, JobEntry, JobFailed, RunLeft
from assay.serving.api_error import ApiError
from assay.serving.ids import index_key, new_id
from assay.serving.jobs import JobRepository
from assay.serving.openai import job_table as job_table_module
from assay.serving.openai.job_table import JobTable
from assay.serving.openai.objects import job_object
from assay.store.logs.entry_log import EntryLog
from assay.store.objects import ObjectStore, open_store
from served import app_in, http_of, sdk_of
from unit.serving.test_jobs import AT, LAUNCHED, PLANNED, SUCCEEDED, VALIDATED, checkpoint, create, happens

FAILED = JobFailed(**AT, code="training_failed", message="it died", param=None)
LEFT = RunLeft(**AT, step=5)
CHARGED = JobCharged(**AT, attempt=1, began_s=0.0, ended_s=3600.0, device_s=3600.0)
RUNNING = (VALIDATED, PLANNED, LAUNCHED, checkpoint(5))
ENDS: dict[str, tuple[JobEntry, ...]] = {
    "succeeded": (*RUNNING, CHARGED, SUCCEEDED),
    "failed": (*RUNNING, CHARGED, FAILED),
    "rejected": (FAILED,),
}


@pytest.fixture(scope="module")
def created(tmp_path_factory: pytest.TempPathFactory) -> JobCreated:
    """Of a job as the API makes it."""
    app = app_in(tmp_path_factory.mktemp("created"))
    state = app.jobs.find(create(sdk_of(app)).id, "default")
    assert state is not None
    return state.created


class Server:
    """One that was begun just now, with the table of those before it, and its clients."""

    def __init__(self, folder: Path, store: ObjectStore, created: JobCreated, table: Path | None = None) -> None:
        app = app_in(folder, store)
        self.app = app._replace(job_table=JobTable(app.jobs, table or folder / "api.db"))
        self.jobs = self.app.jobs
        self._http = http_of(self.app)
        self._created = created

    def create(self, **metadata: str) -> str:
        now_s = time.time()
        time.sleep(0.002)  # ids sort by the millisecond
        created = self._created.model_copy(update={"job_id": new_id("ftjob", now_s), "metadata": metadata})
        self.jobs.put(created)
        return created.job_id

    def over(self, end: str) -> str:
        """A job that came to an end and was closed by its worker."""
        job_id = self.create(end=end)
        happens(self.app, job_id, *ENDS[end])
        self.jobs.close(job_id)
        return job_id

    def listed(self, secret: str = "", **query: Any) -> list[dict[str, Any]]:
        headers = {"authorization": f"Bearer {secret}"}
        response = self._http.get("/v1/fine_tuning/jobs", params={"limit": 100, **query}, headers=headers)
        assert response.status_code == 200, response.text
        jobs: list[dict[str, Any]] = response.json()["data"]
        return jobs

    def status_of(self, job_id: str, secret: str) -> int:
        headers = {"authorization": f"Bearer {secret}"}
        return self._http.get(f"/v1/fine_tuning/jobs/{job_id}", headers=headers).status_code

    def as_they_are(self, job_ids: Iterable[str]) -> list[dict[str, Any]]:
        """As their logs say, the newest first."""
        newest = sorted(job_ids, reverse=True)
        states = [state for _, state in JobRepository(self.jobs.store, self.app.clock).states(newest)]
        return [json.loads(json.dumps(job_object(state, self.app.queue.status(state)))) for state in states]

    def retrieved(self, job_ids: Iterable[str]) -> list[dict[str, Any]]:
        """Each by itself, the newest first."""
        return [self._http.get(f"/v1/fine_tuning/jobs/{id_}").json() for id_ in sorted(job_ids, reverse=True)]


def rows_of(folder: Path) -> list[str]:
    with closing(sqlite3.connect(folder / "api.db")) as driver:
        return [job_id for (job_id,) in driver.execute("SELECT job_id FROM jobs ORDER BY job_id")]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Logs that were asked what has become of their jobs."""
    requested: list[str] = []
    right = EntryLog.state

    def state(log: EntryLog[Any, Any]) -> Any:
        requested.append(log._folder.split("/")[1])
        return right(log)

    monkeypatch.setattr(EntryLog, "state", state)
    return requested


@pytest.mark.parametrize("end", ENDS)
def test_a_job_that_is_over_is_read_once_and_listed_alike_by_every_later_server(
    end: str, tmp_path: Path, created: JobCreated, reads: list[str]
) -> None:
    store = open_store("memory:")
    server = Server(tmp_path, store, created)
    job_id = server.over(end)
    [first] = server.listed()
    for again in (server, Server(tmp_path, store, created)):
        reads.clear()
        assert again.listed() == again.retrieved([job_id]) == [first] and reads == []
    assert Server(tmp_path, store, created).as_they_are([job_id]) == [first]


VERBS = ("pause", "resume", "cancel", "delete_model")


@pytest.mark.parametrize("end", [*ENDS, "cancelled"])
def test_nothing_that_may_be_asked_of_it_changes_what_is_shown(end: str, tmp_path: Path, created: JobCreated) -> None:
    server = Server(tmp_path, open_store("memory:"), created)
    if end == "cancelled":
        job_id = server.create()
        happens(server.app, job_id, *RUNNING)
        server.jobs.cancel(job_id)
        happens(server.app, job_id, CHARGED, LEFT)
        server.jobs.close(job_id)
    else:
        job_id = server.over(end)
    [before] = server.listed()
    for verb in VERBS:
        with suppress(ApiError):
            getattr(server.jobs, verb)(job_id)
    happens(server.app, job_id, JobClaimed(at_s=0.0, retry_count=1))
    assert server.listed() == server.retrieved([job_id]) == server.as_they_are([job_id]) == [before]


@given(data=st.data())
@settings(max_examples=12, deadline=None)
def test_whatever_happens_a_list_says_what_each_job_says(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory, created: JobCreated
) -> None:
    folder, store = tmp_path_factory.mktemp("life"), open_store("memory:")
    server = Server(folder, store, created)
    to_come: dict[str, list[JobEntry]] = {}
    steps = ["create", "happen", "happen", "cancel", "worker", "list", "restart"]
    for step in data.draw(st.lists(st.sampled_from(steps), min_size=3, max_size=20)):
        logs = server.jobs
        if step == "create":
            to_come[server.create()] = list(ENDS[data.draw(st.sampled_from([*ENDS]))])
        elif step == "restart":
            server = Server(folder, store, created)
        elif step == "worker":
            for job_id in logs.open_ids():
                if logs.state(job_id).has_final_cost:
                    logs.close(job_id)
        elif step in ("happen", "cancel") and to_come:
            job_id = data.draw(st.sampled_from(sorted(to_come)))
            if step == "cancel" and not logs.state(job_id).has_ended:
                server.jobs.cancel(job_id)
                to_come[job_id] = [CHARGED, LEFT] if logs.state(job_id).is_at_work else []
            elif step == "happen" and to_come[job_id]:
                happens(server.app, job_id, to_come[job_id].pop(0))
        assert server.retrieved(to_come) == server.listed() == server.as_they_are(to_come)


def test_one_that_its_worker_has_not_closed_is_not_put_down(tmp_path: Path, created: JobCreated) -> None:
    server = Server(tmp_path, open_store("memory:"), created)
    job_id = server.create()
    happens(server.app, job_id, *RUNNING)
    server.jobs.cancel(job_id)
    for entry in (LEFT, CHARGED):
        server.listed()
        happens(server.app, job_id, entry)
    [shown] = server.listed()
    assert shown["x_assay"]["charged_device_hours"] == 1.0 and rows_of(tmp_path) == []


def test_nor_is_one_that_goes_on_though_the_mark_that_says_so_is_lost(tmp_path: Path, created: JobCreated) -> None:
    server = Server(tmp_path, open_store("memory:"), created)
    job_id = server.create()
    server.jobs.store.delete(f"open/ftjob/{job_id}")
    assert [item["status"] for item in server.listed()] == ["validating_files"]
    happens(server.app, job_id, *RUNNING)
    assert [item["status"] for item in server.listed()] == ["running"]


def test_the_jobs_of_others_and_of_other_metadata_are_not_listed(tmp_path: Path, created: JobCreated) -> None:
    server = Server(tmp_path, open_store("memory:"), created)
    created_ids = [server.over(end) for end in ENDS]
    secrets = {
        project: server.app.keys.make(project=project, name="", scopes=("read",), lives_s=None).secret
        for project in ("default", "another")
    }
    for job_id in created_ids:  # whoever can write into the store
        server.jobs.store.put(index_key("another", job_id), b"")
    for _ in range(2):  # from the logs, and from the table
        [found] = server.listed(secrets["default"], **{"metadata[end]": "failed"})
        assert found["id"] == created_ids[1]
        assert server.listed(secrets["another"]) == []
        assert {server.status_of(job_id, secrets["another"]) for job_id in created_ids} == {404}
        assert {server.status_of(job_id, secrets["default"]) for job_id in created_ids} == {200}


def test_all_are_taken_in_before_anybody_asks_the_newest_first(
    tmp_path: Path, created: JobCreated, monkeypatch: pytest.MonkeyPatch, reads: list[str]
) -> None:
    monkeypatch.setattr(job_table_module, "FILLED_AT_ONCE", 2)
    store = open_store("memory:")
    server = Server(tmp_path, store, created)
    server.create()
    created_ids = [server.over(end) for end in [*ENDS, *ENDS]]
    later = Server(tmp_path, store, created)
    cached: list[list[str]] = []
    later.app.job_table.fill(["default"], lambda: cached.append(rows_of(tmp_path)))
    assert cached == [created_ids[-num:] for num in (2, 4, 6)]
    reads.clear()
    later.app.job_table.fill(["default"], lambda: None)
    assert [*set(reads) & {*created_ids}] == []
    assert len(later.jobs._logs) == 0  # what nobody asks for takes no place from what is asked for


def test_a_pass_that_was_cut_off_is_made_again_and_one_behind_a_whole_one_looks_at_the_newest_only(
    tmp_path: Path, created: JobCreated, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_table_module, "FILLED_AT_ONCE", 1)
    monkeypatch.setattr(job_table_module, "KNOWN_IN_A_ROW", 2)
    store = open_store("memory:")
    created_ids = [Server(tmp_path, store, created).over(end) for end in [*ENDS, *ENDS]]

    def filled(max_models: float = math.inf) -> int:
        """How many are looked at by a server that is killed after so many."""
        looks = 0

        def yield_cpu() -> None:
            nonlocal looks
            looks += 1
            if looks >= max_models:
                raise KeyboardInterrupt

        with suppress(KeyboardInterrupt):
            Server(tmp_path, store, created).app.job_table.fill(["default"], yield_cpu)
        return looks

    assert filled(4) == 4 and rows_of(tmp_path) == created_ids[-4:]
    assert filled() == 6 and rows_of(tmp_path) == created_ids
    created_ids.append(Server(tmp_path, store, created).over("failed"))
    assert filled() == 2 and rows_of(tmp_path) == created_ids


def damaged(file: Path) -> None:
    file.write_bytes(b"no table" * 1000)


def cut_short(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:5000])


def of_another_assay(file: Path) -> None:
    with closing(sqlite3.connect(file, isolation_level=None)) as driver:
        driver.execute("UPDATE OR REPLACE jobs SET version = 'older', shape = '{}'")


def test_two_assays_at_once_show_what_each_shows(tmp_path: Path, created: JobCreated) -> None:
    server = Server(tmp_path, open_store("memory:"), created)
    created_ids = [server.over(end) for end in ENDS]
    for _ in range(2):
        assert server.listed() == server.as_they_are(created_ids)
        of_another_assay(tmp_path / "api.db")


@pytest.mark.parametrize("happened", [damaged, cut_short, of_another_assay, Path.unlink])
def test_a_table_that_is_damaged_or_of_another_assay_or_gone_is_made_again(
    happened: Callable[[Path], object], tmp_path: Path, created: JobCreated
) -> None:
    store = open_store("memory:")
    server = Server(tmp_path, store, created)
    created_ids = [server.over(end) for end in ENDS]
    before = server.listed()
    server.app.job_table._driver.close()
    happened(tmp_path / "api.db")
    again = Server(tmp_path, store, created)
    for _ in range(2):
        assert again.listed() == before
    assert rows_of(tmp_path) == created_ids


@contextmanager
def held(file: Path) -> Iterator[None]:
    with closing(sqlite3.connect(file, isolation_level=None)) as driver:
        driver.execute("BEGIN EXCLUSIVE")
        yield


def test_a_table_that_another_holds_or_that_cannot_be_made_costs_nothing_but_time(
    tmp_path: Path, created: JobCreated, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 100.0
    monkeypatch.setattr(job_table_module, "LOCKED_S", 0.01)
    monkeypatch.setattr(job_table_module, "time", SimpleNamespace(monotonic=lambda: now_s))
    store = open_store("memory:")
    server = Server(tmp_path, store, created)
    created_ids = [server.over(end) for end in ENDS]
    before = server.as_they_are(created_ids)
    nowhere = Server(tmp_path, store, created, table=tmp_path / "missing" / "api.db")
    assert nowhere.listed() == before
    server.listed()
    created_ids.append(server.over("succeeded"))
    with held(tmp_path / "api.db"):
        for item in (server, Server(tmp_path, store, created)):
            assert item.listed() == server.as_they_are(created_ids)
    server.listed()
    assert created_ids[-1] not in rows_of(tmp_path)  # waited for once, and not for each job
    now_s += job_table_module.AWAY_S
    server.listed()
    assert rows_of(tmp_path) == created_ids


def test_a_pass_gives_up_while_the_table_is_held_and_is_made_again(
    tmp_path: Path, created: JobCreated, monkeypatch: pytest.MonkeyPatch, reads: list[str]
) -> None:
    now_s = 100.0
    monkeypatch.setattr(job_table_module, "FILLED_AT_ONCE", 1)
    monkeypatch.setattr(job_table_module, "LOCKED_S", 0.01)
    monkeypatch.setattr(job_table_module, "KNOWN_IN_A_ROW", 1)
    monkeypatch.setattr(job_table_module, "time", SimpleNamespace(monotonic=lambda: now_s))
    server = Server(tmp_path, open_store("memory:"), created)
    created_ids = [server.over(end) for end in [*ENDS, *ENDS]]
    reads.clear()
    with ExitStack() as holding:
        hold = cache(lambda: holding.enter_context(held(tmp_path / "api.db")))  # behind the first
        server.app.job_table.fill(["default"], hold)
    assert rows_of(tmp_path) == created_ids[-1:] and len({*reads} & {*created_ids}) < 3
    now_s += job_table_module.AWAY_S
    server.app.job_table.fill(["default"], lambda: None)
    assert rows_of(tmp_path) == created_ids


@pytest.mark.parametrize("text", ["ftjob-..", "..", "%00", "ftjob-" + "0" * 5000, "%ED%A0%80", "file-" + "0" * 24])
def test_what_is_no_jobs_id_asks_the_store_nothing(text: str, tmp_path: Path, created: JobCreated) -> None:
    server = Server(tmp_path, open_store("memory:"), created)
    requested: list[str] = []
    server.jobs.store.exists = requested.append
    assert server.status_of(text, "") == 404 and requested == []
