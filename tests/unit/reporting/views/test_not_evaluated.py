"""A run that cannot be compared yet: what its reader is told to do depends on whether a process works on it."""

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from assay.records.launch import Launch
from assay.records.run import ImportedFrom, RunStatus
from assay.reporting.views.comparison import why_not_evaluated
from assay.reporting.views.runs.run import RunView
from assay.store.launches import process_key


def finished(folder: Path, *, ended_s: float | None) -> RunView:
    """A finished run whose process, that started this one, lives, or has recorded its end."""
    launch = Launch(
        run_id="first", number=1, launcher="here", job=str(os.getppid()), host=socket.gethostname(),
        process=process_key(os.getppid()), started_by="me", started_s=1.0, world_size=1, log="", ended_s=ended_s,
    )  # fmt: skip
    facts: Any = {
        "run_id": "first",
        "status": "succeeded",
        "run_dir": str(folder),
        "launches": (launch,),
        "imported": None,
    }
    return RunView.model_construct(**facts)


@pytest.mark.parametrize(
    ("ended_s", "folder", "why"),
    [
        (None, ".", "that is done now. Compare it in a moment, once its process has ended."),
        (2.0, ".", "it has ended without that. Finish it with 'assay train --resume first' first."),
        (2.0, "gone", "it has ended without that, and its folder is gone: gone."),
    ],
)
def test_a_run_is_waited_for_or_finished(ended_s: float | None, folder: str, why: str) -> None:
    assert why_not_evaluated(finished(Path(folder), ended_s=ended_s)) == why


@pytest.mark.parametrize(
    ("status", "why"),
    [
        ("running", "it is running. Compare it once it has ended."),
        ("unknown", "it may be running, which cannot be told from here. Compare it once it has ended."),
        ("gone", "its supervisor is gone. Finish it with 'assay train --resume first' first."),
        ("preempted", "it was stopped. Finish it with 'assay train --resume first' first."),
        ("failed", "it failed. Finish it with 'assay train --resume first' first."),
    ],
)
def test_the_state_of_a_run_is_told_in_a_sentence(status: RunStatus, why: str) -> None:
    run = finished(Path(), ended_s=2.0).model_copy(update={"status": status})
    assert why_not_evaluated(run) == why


def test_nobody_is_told_to_finish_a_run_that_another_tool_trains() -> None:
    imported = ImportedFrom(tool="python", source="t.py", tool_run_id="1", name="first", status="failed")
    run = finished(Path(), ended_s=2.0).model_copy(update={"imported": imported})
    assert why_not_evaluated(run) == "assay did not train it, so it observed none of its validation rows."
