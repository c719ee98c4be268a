"""Whatever ends an attempt is a fact in the ledger: of which kind, of whom, where and at what."""

import socket
from pathlib import Path

import pytest

from assay.records.failure import Failure
from assay.store.home import Home
from assay.workflows.rebuild import rebuild_all

pytestmark = pytest.mark.slow

CALLS_A_STEP = 5 * 4
"""Of the tiny model's embeddings, in the 4 lanes that each of 2 ranks has."""


@pytest.fixture
def broken(planted_assay, tmp_path: Path):
    """Train with a rank 1 that breaks once, in step 3; what the ledger says of it."""

    def train(how: str) -> tuple[Failure, Home]:
        call, happened = 2 * CALLS_A_STEP + 3, tmp_path / "broken"
        planted_assay.plant("broken_rank", BREAKS=how, BREAKS_AT_CALL=str(call), BREAKS_HAPPENED=str(happened))
        shown = planted_assay.train("breaks", 2, spot_check_every=None)
        assert [attempt["outcome"] for attempt in shown["attempts"]][1:] == ["succeeded"]
        home = Home.at(planted_assay.home)
        with home.open_ledger() as ledger:
            (failure,) = ledger.failures("breaks")
            first, _ = ledger.attempts("breaks")
        assert first.failure == failure
        assert first.reason == failure.sentence(home.run_dir("breaks")) == shown["attempts"][0]["reason"]
        assert (first.hosts, first.devices) == ((socket.gethostname(),) * 2, ("cpu", "cpu"))
        return failure, home

    return train


@pytest.mark.parametrize(
    ("how", "signature"),
    [
        ("exception", "ValueError in "),
        pytest.param("out_of_memory", "RuntimeError in ", marks=pytest.mark.soak),
        ("crashed", "SIGABRT"),
        pytest.param("exited", "exit code 3", marks=pytest.mark.soak),
    ],
)
def test_a_rank_that_breaks_is_a_failure_of_its_kind_with_all_that_is_known(how, signature, broken) -> None:
    failure, home = broken(how)
    assert (failure.failure_kind, failure.attempt, failure.rank) == (how, 1, 1)
    assert (failure.host, failure.device) == (socket.gethostname(), "cpu")
    assert failure.step == 3 and failure.phase in ("compute", "communication")
    assert failure.signature.startswith(signature)
    if how == "exception":
        assert "training.trainer.captured" in failure.signature
        traceback = (home.run_dir("breaks") / failure.file).read_text()
        assert "break_down" in traceback and "a surprise" in traceback


def test_a_killed_rank_is_in_the_ledger_and_comes_back_when_the_ledger_is_lost(planted_assay, tmp_path) -> None:
    (plan := tmp_path / "faults.yaml").write_text(
        "faults: [{type: kill, rank: 1, step: 4, phase: compute}, {type: hang, rank: 0, step: 6, attempt: 2}]"
    )
    planted_assay.train("killed", 2, "--faults", str(plan), "--hang-after", "3")
    home = Home.at(planted_assay.home)
    with home.open_ledger() as ledger:
        failures, notes = ledger.failures(), ledger.incidents("killed")
    assert [(failure.failure_kind, failure.rank, failure.step, failure.phase) for failure in failures] == [
        ("killed_by_signal", 1, 4, "compute"),
        ("hang", 0, 6, "compute"),
    ]
    assert [failure.signature for failure in failures] == ["SIGKILL", "hang in compute"]
    assert "trainer.py" in (home.run_dir("killed") / failures[1].file).read_text()
    # On a busy machine a rank may also be noticed as slow.
    planted = [(note.incident, note.attempt, note.rank) for note in notes if note.incident != "straggler"]
    assert planted == [
        ("fault", 1, 1),
        ("fault", 2, 0),
        ("hang", 2, 0),
    ]
    home.ledger_file().unlink()
    with home.open_ledger() as ledger:
        rebuild_all(home, ledger)
        assert ledger.failures() == failures
        assert ledger.incidents("killed") == notes
