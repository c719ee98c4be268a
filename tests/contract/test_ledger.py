import socket
import threading
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from assay.base.errors import ConfigError, DataError, StoreAwayError, StoreError
from assay.records.audit import AuditReport
from assay.records.benchmark import BenchmarkResult, DetectableEffect
from assay.records.campaign import Campaign
from assay.records.commit import AttemptBegan, Commit, CommitQuarantined, LogEntry, RunFinished
from assay.records.cursor import Cursor
from assay.records.decision import Decision, Look
from assay.records.evaluation import AucComparison, ClassifierEvaluation, ClassifierMetrics, Estimate
from assay.records.run import Attempt, PhaseSeconds, Run
from assay.store.ledger import database, tables
from assay.store.ledger.ledger import Ledger, insertion, open_ledger, parsed, upsert
from assay.store.ledger.visible_runs import VisibleRuns
from failing_ledger import Strike
from failing_ledger import strike as strike
from ledger_rows import drop_tables
from machine import MACHINE


def run(run_id: str, created_s: float = 1.0) -> Run:
    return Run(
        run_id=run_id,
        created_s=created_s,
        recipe={"name": "tiny", "seed": 7, "text": "naïve ✓\x00"},
        recipe_sha256="r" * 64,
        dataset_fingerprint="d" * 64,
        code_version="0.1.0",
        run_dir="runs/" + run_id,
        store_url="runs/" + run_id,
        num_steps=10,
    )


def attempt(number: int, **fields: object) -> Attempt:
    defaults: dict[str, object] = {"world_size": 2, "start_step": 0, "started_s": 5.0, **MACHINE}
    return Attempt.model_validate({"run_id": "a", "attempt": number, **defaults, **fields})


def evaluation(step: int, auc: float | None) -> ClassifierEvaluation:
    metrics = ClassifierMetrics(
        num_rows=10,
        num_positive=2,
        auc=None if auc is None else Estimate(value=auc, low=auc - 0.1, high=auc + 0.1, method="DeLong"),
        average_precision=None,
        log_loss=Estimate(value=0.5),
        expected_calibration_error=0.1,
        calibration=(),
    )
    return ClassifierEvaluation(
        run_id="a",
        step=step,
        weights_digest="w",
        dataset_fingerprint="d",
        split="validation",
        overall=metrics,
        slices=(),
        predictions_sha256="p",
    )


def commit(step: int) -> Commit:
    return Commit(
        attempt=1,
        world_size=2,
        step=step,
        cursor=Cursor(epoch=0, step_in_epoch=step),
        committed_s=9.0,
        folder=f"checkpoints/{step:08d}-0001",
        files=(),
        weights_digest="w",
        receipts_from_step=0,
        rows_trained=8 * step,
    )


def campaign(name: str, created_s: float) -> Campaign:
    return Campaign(
        name=name,
        config={},
        config_sha256="c",
        recipe={},
        base_dir=".",
        known_good_sha256=None,
        created_s=created_s,
        suites={},
    )


def decision(candidate: str, num_seeds: int, *, revision: int = 1, campaign: str = "lr") -> Decision:
    look = Look(name="look", num_seeds=num_seeds, is_gate=True, level=0.99, spent=0.01, spent_so_far=0.01)
    return Decision(
        campaign=campaign, campaign_sha256="c", question="?", candidate=candidate, because="", patch={"a": 1},
        recommendation="narrow", decided_by="gain", is_final=False,
        look=look, look_number=1, num_looks=2,
        effect=Estimate(value=0.1, low=-0.1, high=0.3), unit="nats per row", least_effect=0.01,
        effects=(), gates=(), cheapest=None, blocking=None, runs=(),
        spent_s=1.0, next_s=None, budget_s=2.0,
        baseline_recipe_sha256="r", candidate_recipe_sha256="s", revision=revision,
    )  # fmt: skip


def benchmark_result(benchmark: str, step: int, run_id: str = "run") -> BenchmarkResult:
    return BenchmarkResult(
        run_id=run_id, candidate="c", step=step, weights_digest="w", benchmark=benchmark, benchmark_sha256="b",
        grader_sha256="g", prompt_sha256="p", num_items=2, num_failed=1, failures={"timeout": 1},
        score=Estimate(value=0.5), could_detect=DetectableEffect(effect=0.1), device_s=1.5, evaluated_s=2.0,
        items_sha256="i",
    )  # fmt: skip


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'home' / 'ledger.db'}"
        return
    url = request.getfixturevalue("postgres_url")
    yield url
    drop_tables(url)


@pytest.fixture
def ledger(url: str) -> Iterator[Ledger]:
    with open_ledger(url) as ledger:
        yield ledger


class TestLedger:
    def test_a_run_comes_back_as_it_was_written(self, ledger: Ledger) -> None:
        ledger.record_run(run("a"))
        assert ledger.run("a") == run("a")

    def test_writing_everything_twice_changes_nothing(self, ledger: Ledger) -> None:
        def write_all() -> None:
            ledger.record_run(run("a"))
            ledger.record_attempt(attempt(1))
            ledger.record_log_entries("a", {0: AttemptBegan(attempt=1, world_size=2, began_s=5.0)})
            ledger.record_phase_seconds(
                PhaseSeconds(run_id="a", attempt=1, rank=0, held_s=3.0, seconds={"compute": 2.0, "idle": 1.0})
            )
            ledger.record_evaluation(evaluation(3, 0.9))

        write_all()
        before = self.everything(ledger)
        write_all()
        assert self.everything(ledger) == before
        assert all(len(facts) == 1 for facts in before)

    def test_a_reader_with_own_runs_sees_no_facts_of_others_and_writes_as_all_do(self, url: str) -> None:
        with open_ledger(url) as ledger:
            for run_id in ("job-own1", "job-not1", "else"):
                ledger.record_run(run(run_id))
                ledger.record_phase_seconds(
                    PhaseSeconds(run_id=run_id, attempt=1, rank=0, held_s=3.0, seconds={"compute": 3.0})
                )
        shown = VisibleRuns([("job-", 8)], ["job-own1"])
        with open_ledger(url, shown=shown) as ledger:
            ledger.record_run(run("job-not2"))
            ledger.record_run(run("later"))
            assert {found.run_id for found in ledger.runs()} == {"job-own1", "else", "later"}
            assert {found.run_id for found in ledger.phase_seconds()} == {"job-own1", "else"}
            assert not ledger.has_run("job-not1") and not ledger.has_run("job-not2")
            with ledger.reading() as connection:
                assert connection.execute("SELECT COUNT(*) FROM runs WHERE run_id = 'job-not1'") == [(0,)]
        with open_ledger(url) as ledger:
            assert len(ledger.runs()) == 5
        assert [shown.shows(run_id) for run_id in ("job-own1", "job-not1", "job-long1")] == [True, False, True]

    def test_every_table_leaves_out_rows_of_runs_of_others(self, url: str) -> None:
        values = {tables.STRING: "x", tables.TEXT: "{}", tables.BYTES: b"", tables.FLOAT: 0.5}
        columns = [
            (table, [column for column in table.columns if column.endswith("run_id")]) for table in tables.TABLES
        ]
        columns = [(table, of_runs) for table, of_runs in columns if of_runs]
        with open_ledger(url) as ledger, ledger.writing() as connection:
            for table, of_runs in columns:
                kinds = {**table.key, **table.other_columns}.items()
                blank = {column: values.get(kind, 7) for column, kind in kinds if kind != tables.SERIAL}
                for runs in product(("job-own1", "job-not1", "else"), repeat=len(of_runs)):
                    row = {**blank, **dict(zip(of_runs, runs, strict=True))}
                    connection.execute(insertion(table, row), row)
        shown = VisibleRuns([("job-", 8)], ["job-own1"])
        with open_ledger(url, shown=shown) as ledger, ledger.reading() as connection:
            for table, of_runs in columns:
                found = connection.execute(f"SELECT DISTINCT {', '.join(of_runs)} FROM {table.name}")
                assert {*found} == {*product(("job-own1", "else"), repeat=len(of_runs))}, table.name

    @pytest.mark.parametrize("run_id", ["job-not1", "JOB-not1", "job_not1", "job-%%%%", "job-nöt1", "xjob-not", "job-"])
    def test_a_run_is_shown_by_its_id_where_its_rows_are(self, url: str, run_id: str) -> None:
        shown = VisibleRuns([("job-", 8)], [])
        with open_ledger(url) as ledger:
            ledger.record_run(run(run_id))
        with open_ledger(url, shown=shown) as ledger:
            assert ledger.has_run(run_id) == shown.shows(run_id)

    def test_tables_whose_statements_come_in_twice_are_made_once(
        self, url: str, strike: Strike, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        strike(dict.fromkeys(range(5), "twice"))
        monkeypatch.setattr(database, "LOCKED_S", 5)  # to connect takes a server its time
        with open_ledger(url) as ledger:
            ledger.record_run(run("a"))
            assert ledger.runs() == [run("a")]

    def everything(self, ledger: Ledger) -> list[list[object]]:
        return [
            [*ledger.runs()],
            [*ledger.attempts("a")],
            [*ledger.log_entries("a")],
            [*ledger.phase_seconds("a")],
            [*ledger.evaluations("a")],
        ]

    def test_an_attempt_that_ended_replaces_the_one_that_ran(self, ledger: Ledger) -> None:
        ledger.record_attempt(attempt(2, start_step=100))
        ledger.record_attempt(attempt(1))
        ended = attempt(1, ended_s=9.0, end_step=100, outcome="killed", reason="rank 1 was killed by SIGKILL")
        ledger.record_attempt(ended)
        assert ledger.attempts("a") == [ended, attempt(2, start_step=100)]

    def test_the_log_comes_back_in_order_whatever_the_order_of_writing(self, ledger: Ledger) -> None:
        entries: list[LogEntry] = [
            AttemptBegan(attempt=1, world_size=2, began_s=5.0),
            commit(100),
            commit(200),
            CommitQuarantined(attempt=2, folder="checkpoints/00000200-0001", step=200, reason="a digest differs"),
            RunFinished(attempt=2, step=300, weights_digest="w"),
        ]
        ledger.record_log_entries("a", {index: entries[index] for index in (3, 0, 4)})
        ledger.record_log_entries("a", {index: entries[index] for index in (2, 1, 0)})
        ledger.record_log_entries("a", {})
        assert ledger.log_entries("a") == entries

    def test_runs_are_listed_newest_first(self, ledger: Ledger) -> None:
        for created_s, run_id in ((2.0, "b"), (3.0, "c"), (1.0, "a")):
            ledger.record_run(run(run_id, created_s))
        assert [some.run_id for some in ledger.runs()] == ["c", "b", "a"]

    def test_each_read_sees_what_others_have_changed_deleted_and_written_again(self, ledger: Ledger, url: str) -> None:
        first, again = run("a"), run("a").model_copy(update={"recipe": {"name": "again"}, "created_s": 5.0})
        with open_ledger(url) as other:
            for record in (first, again, first):
                other.record_run(record)
                assert ledger.runs() == [ledger.run("a")] == [record]
            other.forget("a")
            assert ledger.runs() == []
            other.record_run(again)
            assert ledger.runs() == [again]

    def test_one_run_of_many_that_changed_is_the_only_one_parsed(self, ledger: Ledger) -> None:
        for number in range(20):
            ledger.record_run(run(f"run-{number}"))
        parsed.cache_clear()
        ledger.runs()
        changed = run("run-7").model_copy(update={"num_steps": 11})
        ledger.record_run(changed)
        assert changed in ledger.runs() and parsed.cache_info().misses == 20 + 1

    def test_a_row_that_cannot_be_read_is_named(self, ledger: Ledger) -> None:
        ledger.record_attempt(attempt(3))
        with ledger.writing() as connection:
            connection.execute("UPDATE attempts SET record = '{}'")
        for _ in range(2):
            with pytest.raises(DataError, match="ledger, attempts a 3"):
                ledger.attempts()

    def test_a_unique_prefix_names_a_run(self, ledger: Ledger) -> None:
        for run_id in ("tiny-1", "tiny-10", "large_2", "largeX2"):
            ledger.record_run(run(run_id))
        assert ledger.run("large_").run_id == "large_2"
        assert ledger.run("tiny-1").run_id == "tiny-1"

    @pytest.mark.parametrize(
        ("query", "message"),
        [
            ("tiny", "begins the ids of 2 runs: tiny-1, tiny-2"),
            ("tinny-1", "Perhaps you meant tiny-1"),
            ("zzz", "'assay runs' lists those"),
            ("nothing", "'assay runs' lists those"),  # shares letters with tiny-1, and is no slip of it
            ("", "no run ''"),
        ],
    )
    def test_an_unclear_run_is_refused_with_what_may_be_meant(self, ledger: Ledger, query: str, message: str) -> None:
        ledger.record_run(run("tiny-1"))
        ledger.record_run(run("tiny-2"))
        with pytest.raises(ConfigError, match=message):
            ledger.run(query)

    def test_an_empty_ledger_says_so(self, ledger: Ledger) -> None:
        with pytest.raises(ConfigError, match="holds no runs"):
            ledger.run("a")
        assert ledger.runs() == [] and ledger.attempts("a") == [] and ledger.audit("a") is None

    def test_evaluations_come_by_step(self, ledger: Ledger) -> None:
        for step, auc in ((300, 0.9), (100, None), (200, 0.8)):
            ledger.record_evaluation(evaluation(step, auc))
        assert [some.step for some in ledger.evaluations("a")] == [100, 200, 300]
        assert ledger.evaluations("a")[2] == evaluation(300, 0.9)

    def test_a_comparison_is_found_from_both_of_its_runs(self, ledger: Ledger) -> None:
        comparison = AucComparison(
            baseline_run_id="a",
            candidate_run_id="b",
            num_rows=10,
            baseline_auc=0.9,
            candidate_auc=0.89,
            difference=Estimate(value=-0.01, low=-0.02, high=0.0),
            allowed_loss=0.01,
            verdict="undecided",
            weights_equal=False,
        )
        ledger.record_comparison(comparison)
        assert ledger.comparisons("a") == ledger.comparisons("b") == [comparison]
        assert ledger.comparisons("c") == []

    def test_the_latest_audit_is_kept(self, ledger: Ledger) -> None:
        first = AuditReport(
            run_id="a",
            verdict="incomplete",
            step=2,
            epochs=1,
            rows_expected=5,
            rows_trained=5,
            rows_quarantined=0,
        )
        last = first.model_copy(update={"verdict": "fail", "missing": ("epoch 0 row 7",), "rows_trained": 4})
        ledger.record_audit(first)
        ledger.record_audit(last)
        assert ledger.audit("a") == last

    def test_what_is_written_is_there_after_reopening(self, url: str) -> None:
        with open_ledger(url) as ledger:
            ledger.record_run(run("a"))
        with open_ledger(url) as ledger:
            assert ledger.run("a") == run("a")

    def test_writers_and_openers_in_many_threads_do_not_disturb_each_other(self, url: str) -> None:
        failures: list[BaseException] = []

        def write(writer: int) -> None:
            try:
                with open_ledger(url) as ledger:
                    for number in range(5):
                        ledger.record_run(run(f"{writer}-{number}"))
                        ledger.runs()
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=write, args=(writer,)) for writer in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        with open_ledger(url) as ledger:
            assert len(ledger.runs()) == 20

    def test_a_transaction_that_fails_writes_nothing(self, ledger: Ledger) -> None:
        with pytest.raises(RuntimeError, match="half-way"), ledger.writing() as connection:
            connection.execute("INSERT INTO runs VALUES ('a', 1.0, '{}')")
            raise RuntimeError("half-way")
        assert ledger.runs() == []

    def test_benchmark_results_come_by_benchmark_version_and_step(self, url: str) -> None:
        expected = [benchmark_result("a", 5), benchmark_result("a", 10), benchmark_result("b", 5)]
        with open_ledger(url) as ledger:
            for result in reversed([*expected, benchmark_result("b", 5, run_id="other")]):
                ledger.record_benchmark_result(result)
                ledger.record_benchmark_result(result)
            assert ledger.benchmark_results("run") == expected
            assert len(ledger.benchmark_results()) == 4

    def test_decisions_come_by_candidate_and_the_newest_of_each_last(self, url: str) -> None:
        expected = [decision("a", 3), decision("a", 5), decision("a", 5, revision=2), decision("b", 2)]
        with open_ledger(url) as ledger:
            for item in (campaign("lr", 1.0), campaign("dropout", 2.0), campaign("lr", 1.0)):
                ledger.record_campaign(item)
            for created in reversed([*expected, decision("a", 9, campaign="dropout")]):
                ledger.record_decision(created)
                ledger.record_decision(created)
            assert [item.name for item in ledger.campaigns()] == ["dropout", "lr"]
            assert ledger.decisions("lr") == expected

    @pytest.mark.parametrize(
        ("change", "found"),
        [
            ("UPDATE ledger_layout SET version = 99", "layout 99"),
            ("DROP TABLE benchmark_results", "layout 1 and lack benchmark_results"),
            ("DROP TABLE ledger_layout", "layout none and lack ledger_layout"),
        ],
    )
    def test_another_layout_is_refused_and_left_alone(self, url: str, change: str, found: str) -> None:
        with open_ledger(url) as ledger, ledger.writing() as connection:
            connection.execute(change)
        with pytest.raises(StoreError, match=f"{found}; this assay reads layout 1"):
            open_ledger(url)


@pytest.mark.parametrize("url", ["ledger.db", "mysql://host/x", "sqlite://", "not a url at all"])
def test_a_url_that_names_no_ledger_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="names no ledger"):
        open_ledger(url)


def test_an_unreachable_server_is_one_clear_error_without_the_password() -> None:
    with pytest.raises(StoreAwayError, match=r"Is the server running") as caught:
        open_ledger("postgresql://user:secret@127.0.0.1:9/x")
    assert "secret" not in str(caught.value)
    assert caught.value.exit_code == 75


@pytest.mark.slow
def test_something_that_accepts_and_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "LOCKED_S", 2)  # the least that the driver knows
    began_s = time.monotonic()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"postgresql://user@127.0.0.1:{listener.getsockname()[1]}/x"
        with pytest.raises(StoreError, match="Something accepts connections there and says nothing"):
            open_ledger(url)
    assert time.monotonic() - began_s < 10


def test_a_database_that_has_no_encoding_keeps_texts(postgres_url: str) -> None:
    import psycopg

    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("DROP DATABASE IF EXISTS plain")
        connection.execute("CREATE DATABASE plain ENCODING SQL_ASCII LOCALE 'C' TEMPLATE template0")
    with open_ledger(postgres_url.replace("/postgres?", "/plain?")) as ledger:
        ledger.record_run(run("a"))
        assert ledger.run("a") == run("a")


@pytest.mark.slow
def test_a_server_that_falls_silent_is_given_up(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "SILENT_S", 2)
    with open_ledger(postgres_url) as ledger:
        began_s = time.monotonic()
        with pytest.raises(StoreError, match="says nothing: is it stopped"), ledger.reading() as connection:
            connection.execute("SELECT pg_sleep(60)")
        assert time.monotonic() - began_s < 10
        assert ledger.runs() == []


@pytest.mark.slow
def test_what_another_process_holds_is_an_error_that_says_so(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "LOCKED_S", 2)
    with open_ledger(url) as ledger, open_ledger(url) as other, ledger.writing() as connection:
        upsert(connection, tables.runs, [{"run_id": "a", "created_s": 1.0, "record": "{}"}])
        with pytest.raises(StoreError, match="Another process has held it for over 2 s"):
            other.record_run(run("a"))


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    path.write_bytes(b"not SQLite at all, " * 100)
    with pytest.raises(StoreError, match=r"ledger\.db: file is not a database"):
        open_ledger(f"sqlite:///{path}")
