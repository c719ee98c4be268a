"""The audit of a session finds what was not executed exactly once, or was changed since."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from assay.base.digest import canonical_json
from assay.cli.main import cli
from assay.records.session import SessionCheckpoint, SessionCreated, SessionModel
from assay.serving.sessions.request_log import JSON, PROTOBUF, RequestKind, Result, TargetId
from assay.serving.sessions.sessions import SessionRepository
from assay.serving.tinker import results
from assay.serving.tinker.messages import canonical_bytes, new_message
from assay.serving.tinker.results import SampledSequence
from assay.store.objects import ObjectStore, open_store
from assay.workers.sessions.audit import audit_session
from assay.workers.sessions.weights import ModelStates, StoredState
from clocks import ManualClock

SESSION = "session-" + "0" * 24
MODEL, SAMPLER = TargetId(SESSION, "train", 0), TargetId(SESSION, "sample", 2)
TRAIN = f"session-data/{SESSION}/train/0"
DIGITS = "0" * 16


class Audited:
    """A session with two steps, a saved state, a commit and a sample, in a store that a test changes."""

    def __init__(self, store: ObjectStore) -> None:
        self.store = store
        self.sessions = SessionRepository(store, ManualClock())
        self.sessions.put(SessionCreated(session_id=SESSION, project="p", at_s=0.0, key_id="", sdk_version="0.38.0"))
        model = SessionModel(at_s=0.0, model_index=0, base_model="tiny", base={}, lora_rank=4)
        self.sessions.add_model(SESSION, model)
        self.add(0, "create_model")
        for seq_id in (1, 3):
            self.add(seq_id, "forward_backward")
            self.add(seq_id + 1, "optim_step")
        self.add(5, "save_weights")
        self.add(9, "sample", target=SAMPLER)
        states = ModelStates(store, MODEL)
        states.put("commits", 3, StoredState(3, b"weights"))
        states.put("training", 5, StoredState(5, b"weights"))
        saved = SessionCheckpoint(at_s=0.0, model_index=0, seq_id=5, checkpoint_type="training", name="a", num_bytes=1)
        self.sessions.note_checkpoint(SESSION, saved)

    def add(
        self,
        seq_id: int,
        kind: RequestKind,
        *,
        own: int | None = None,
        target: TargetId = MODEL,
        has_result: bool = True,
    ) -> None:
        """Store a request and its result. `own`: the number in its body."""
        number, log = seq_id if own is None else own, self.sessions.requests(target)
        if kind == "forward_backward":
            message = new_message("ForwardBackwardRequest")
            message.seq_id = number
            log.append(seq_id, kind, PROTOBUF, canonical_bytes(message), now_s=0.0)
        else:
            body: dict[str, Any] = {} if kind == "create_model" else {"seq_id": number}
            if kind == "sample":
                prompt = {"chunks": [{"tokens": [5]}]}
                body |= {"sampling_session_id": str(target), "prompt": prompt, "sampling_params": {}}
            log.append(seq_id, kind, JSON, canonical_json(body).encode(), now_s=0.0)
        if has_result:
            executed = {
                "forward_backward": results.forward_backward([], {}),
                "sample": results.samples([SampledSequence([7], [-1.0], True)]),
            }
            log.put_result(seq_id, executed.get(kind, Result.of_json({})))

    def change(self, key: str) -> None:
        """Flip the last bit of an object."""
        data = self.store.get(key)
        self.store.put(key, data[:-1] + bytes([data[-1] ^ 1]))


@pytest.fixture
def audited() -> Audited:
    return Audited(open_store("memory:"))


def test_a_session_whose_requests_were_executed_once_passes(audited: Audited) -> None:
    found = audit_session(audited.sessions, SESSION)
    assert (found.verdict, found.num_requests, found.num_results, found.problems) == ("pass", 7, 7, ())
    audited.add(6, "forward_backward", has_result=False)
    assert audit_session(audited.sessions, SESSION).verdict == "incomplete"


def copied(key: str, to: str) -> Callable[[Audited], None]:
    return lambda audited: audited.store.put(to, audited.store.get(key))


@pytest.mark.parametrize(
    "damage, problem",
    [
        (lambda it: it.store.delete(f"{TRAIN}/results/{DIGITS}/002"), "request 2 has no result, but later ones were"),
        (lambda it: it.store.delete(f"{TRAIN}/requests/{DIGITS}/002"), "result 2 has no request"),
        (lambda it: it.add(8, "optim_step"), "request 6 is missing, but later ones were executed"),
        (lambda it: it.change(f"{TRAIN}/requests/{DIGITS}/003"), "request 3: .* its body has not the digest"),
        (lambda it: it.change(f"{TRAIN}/results/{DIGITS}/004"), "result 4: .* its body has not the digest"),
        (copied(f"{TRAIN}/requests/{DIGITS}/003", f"{TRAIN}/requests/0/003"), "request 3 is stored twice"),
        (lambda it: it.add(6, "forward_backward", own=3), "request 6 is request 3 by its body"),
        (lambda it: it.add(6, "optim_step", own=4), "request 6 is request 4 by its body"),
        (lambda it: it.add(10, "sample", own=9, target=SAMPLER), "request 10 is request 9 by its body"),
        (lambda it: it.add(6, "create_model"), "request 6 is create_model; a model is created by request 0"),
        (lambda it: it.change(f"{TRAIN}/commits/{3:019d}"), "state commits/3: .* its body has not the digest"),
        (lambda it: it.store.delete(f"{TRAIN}/training/{5:019d}"), "saved weights a: their state training/5 is miss"),
        (copied(f"{TRAIN}/commits/{3:019d}", f"{TRAIN}/commits/{4:019d}"), "commits/4: it says .* before request 3"),
        (copied(f"{TRAIN}/commits/{3:019d}", f"{TRAIN}/training/{4:019d}"), "training/4: no request 4 saved it"),
        (lambda it: ModelStates(it.store, MODEL).put("commits", 7, StoredState(7, b"")), "request 6, which it includ"),
    ],
)
def test_what_is_missing_changed_or_doubled_fails(audited: Audited, damage, problem: str) -> None:
    damage(audited)
    found = audit_session(audited.sessions, SESSION)
    assert found.verdict == "fail"
    assert any(re.search(problem, text) for text in found.problems), found.problems


def test_the_command_prints_the_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path))
    audited = Audited(open_store(str(tmp_path / "api")))
    done = CliRunner().invoke(cli, ["runs", "audit", SESSION])
    assert done.exit_code == 0 and "7 of 7 requests executed" in done.output, done.output
    audited.store.delete(f"{TRAIN}/results/{DIGITS}/002")
    done = CliRunner().invoke(cli, ["runs", "audit", SESSION, "--json"])
    assert done.exit_code == 1 and json.loads(done.output)["verdict"] == "fail"
    other = CliRunner().invoke(cli, ["runs", "audit", SESSION.replace("0", "1")])
    assert other.exit_code and "No session" in str(other.exception or other.output)
