"""Commits that somebody wrote by hand, each digest right: nothing in them is run, and one error says so."""

import io
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata

from assay.base.clock import SystemClock
from assay.base.errors import DamagedDataError
from assay.distributed.ranks import Ranks
from assay.records.commit import Commit
from assay.records.cursor import Cursor
from assay.store.commit_log import CommitLog
from assay.store.objects import open_store
from assay.training.checkpoint.parts import StatefulPart, training_parts
from assay.training.checkpoint.retention import RetentionConfig
from assay.training.checkpoint.saver import LaneReceipts, Saver
from payloads import Payload


class Values:
    """A part of any state."""

    def __init__(self, **values: Any) -> None:
        self.values = values

    def state(self) -> dict[str, Any]:
        return self.values

    def restore(self, state: dict[str, Any]) -> None:
        self.values = state


def saver_of(values: StatefulPart, ranks: Ranks, log: CommitLog) -> Saver:
    model = nn.Linear(3, 2)
    parts = training_parts(model, torch.optim.AdamW(model.parameters()))
    return Saver({**parts, "values": values}, ranks, log, RetentionConfig(), SystemClock())


def commit_of(values: StatefulPart, ranks: Ranks, folder: Path) -> tuple[CommitLog, Commit]:
    log = CommitLog(open_store(str(folder)))
    log.begin_attempt(world_size=1, now_s=0.0)
    saver = saver_of(values, ranks, log)
    saver.begin(step=1, cursor=Cursor(), from_step=0, receipts=LaneReceipts())
    saver.close()
    return log, log.commits()[-1]


def refused(ranks: Ranks, log: CommitLog, commit: Commit, *, expected: Any) -> str:
    """What is said where a commit is restored whose `values` should be the expected ones."""
    saver = saver_of(Values(value=expected), ranks, log)
    with pytest.raises(DamagedDataError, match=r"not written by assay|cannot be read into") as raised:
        saver.restore(commit)
    saver.close()
    return str(raised.value)


@pytest.mark.parametrize("index", ["whole", "planner_data", "storage_data", "state_dict_metadata"])
def test_a_payload_in_the_metadata_does_not_run(ranks: Ranks, tmp_path: Path, index: str) -> None:
    log, commit = commit_of(Values(value=1.0), ranks, tmp_path / "run")
    file = tmp_path / "run" / commit.folder / ".metadata"
    payload, metadata = Payload(tmp_path / "it ran"), pickle.loads(file.read_bytes())
    if index != "whole":
        setattr(metadata, index, {**getattr(metadata, index), "more": payload})
    file.write_bytes(pickle.dumps(payload if index == "whole" else metadata))
    message = refused(ranks, log, commit, expected=1.0)
    assert ".metadata" in message and "mkdir" in message
    assert not payload.ran()


@pytest.mark.parametrize("expected", [1.0, "a name", torch.zeros(2)], ids=["number", "text", "tensor"])
def test_a_payload_in_place_of_a_value_does_not_run(ranks: Ranks, tmp_path: Path, expected: Any) -> None:
    payload = Payload(tmp_path / "it ran")
    log, commit = commit_of(Values(value=payload), ranks, tmp_path / "run")
    refused(ranks, log, commit, expected=expected)
    assert not payload.ran()


def test_a_payload_in_place_of_a_tensors_bytes_does_not_run(ranks: Ranks, tmp_path: Path) -> None:
    payload, bytes_of_it = Payload(tmp_path / "it ran"), io.BytesIO()
    torch.save(payload, bytes_of_it)
    log, commit = commit_of(Values(value=torch.zeros(2)), ranks, tmp_path / "run")
    folder = tmp_path / "run" / commit.folder
    metadata: Metadata = pickle.loads((folder / ".metadata").read_bytes())
    for info in metadata.storage_data.values():
        info.offset, info.length = 0, len(bytes_of_it.getvalue())
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    next(folder.glob("*.distcp")).write_bytes(bytes_of_it.getvalue())
    refused(ranks, log, commit, expected=torch.zeros(2))
    assert not payload.ran()


def test_a_file_outside_of_the_commit_is_not_opened(ranks: Ranks, tmp_path: Path) -> None:
    log, commit = commit_of(Values(value=torch.zeros(2)), ranks, tmp_path / "run")
    file = tmp_path / "run" / commit.folder / ".metadata"
    metadata: Metadata = pickle.loads(file.read_bytes())
    for info in metadata.storage_data.values():
        info.relative_path = "../../../elsewhere"
    file.write_bytes(pickle.dumps(metadata))
    assert "'../../../elsewhere' is no file of this commit" in refused(ranks, log, commit, expected=torch.zeros(2))


@pytest.mark.parametrize("wrong", [None, 7, [], {}, {"values.value": BytesStorageMetadata()}, {"values.value": 1}])
def test_metadata_of_another_shape_ends_in_one_error(ranks: Ranks, tmp_path: Path, wrong: Any) -> None:
    log, commit = commit_of(Values(value=torch.zeros(2)), ranks, tmp_path / "run")
    file = tmp_path / "run" / commit.folder / ".metadata"
    metadata: Metadata = pickle.loads(file.read_bytes())
    metadata.state_dict_metadata = wrong
    file.write_bytes(pickle.dumps(metadata))
    refused(ranks, log, commit, expected=torch.zeros(2))
