"""What `assay runs show` says of a session."""

from pathlib import Path

import numpy as np
import pytest

from assay.records.session import SessionCharged, SessionCheckpoint, SessionCreated, SessionModel
from assay.reporting.views.runs.session import session_view
from assay.serving.sessions.request_log import JSON, PROTOBUF, Result, TargetId
from assay.serving.sessions.sessions import SessionRepository
from assay.serving.tinker import results
from assay.store.objects import open_store
from clocks import ManualClock

SESSION = "session-" + "0" * 24
MODEL = TargetId(SESSION, "train", 0)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A session with one step that was executed, saved weights, and one request that waits."""
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path))
    (tmp_path / "settings.yaml").write_text("currency: EUR\ndevice_hour_prices: {cpu: 2.0}\n")
    sessions = SessionRepository(open_store(str(tmp_path / "api")), ManualClock())
    sessions.put(SessionCreated(session_id=SESSION, project="ours", at_s=0.0, key_id="", sdk_version="0.38.0"))
    sessions.add_model(SESSION, SessionModel(at_s=0.0, model_index=0, base_model="tiny", base={}, lora_rank=4))
    log = sessions.requests(MODEL)
    passed = results.forward_backward([np.zeros(3, np.float32)], {"loss:sum": 2.5})
    stepped = Result.of_json({"metrics": {"gradient_norm:mean": 0.125}})
    for seq_id, kind, result in (
        (0, "create_model", results.created_model(MODEL)),
        (1, "forward_backward", passed),
        (2, "optim_step", stepped),
        (3, "forward_backward", None),
    ):
        log.append(seq_id, kind, PROTOBUF if kind == "forward_backward" else JSON, b"{}", now_s=0.0)  # type: ignore[arg-type]
        if result is not None:
            log.put_result(seq_id, result)
    saved = SessionCheckpoint(at_s=0.0, model_index=0, seq_id=5, checkpoint_type="training", name="a", num_bytes=1)
    sessions.note_checkpoint(SESSION, saved)
    sessions.charge(SESSION, SessionCharged(at_s=0.0, lease=1, began_s=0.0, ended_s=9000.0, device_s=5400.0))
    return tmp_path


def test_a_session_is_shown_with_its_models_what_they_wait_for_and_what_was_saved(home: Path) -> None:
    shown = session_view(home / SESSION)
    assert shown is not None and shown.project == "ours"
    [model] = shown.models
    assert (model.num_requests, model.num_results) == (4, 3)
    assert (model.loss, model.gradient_norm) == (2.5, 0.125)
    assert "No worker" in model.waiting_for and list(model.saved) == [f"tinker://{MODEL}/weights/a"]


def test_a_session_that_is_not_there_has_no_view(home: Path) -> None:
    assert session_view(home / SESSION.replace("0", "1")) is None
