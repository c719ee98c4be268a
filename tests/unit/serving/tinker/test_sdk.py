"""The official SDK, unchanged, against the server: all calls that loops make."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from assay.workers.sessions.audit import audit_session
from served import app_in
from sessions import AnsweringWorker, on_socket, tinker_server


def test_a_client_trains_samples_saves_and_resumes(requires, tmp_path: Path) -> None:
    requires("sdks", find_spec("tinker") is not None, "the tinker SDK is not installed")
    app = app_in(tmp_path, method="supervised")
    worker = AnsweringWorker(app.sessions)
    script = Path(__file__).with_name("client_script.py")
    with on_socket(tinker_server(app)) as url, worker.at_work():
        ended = subprocess.run(
            [sys.executable, "-W", "ignore", script, url], capture_output=True, text=True, check=False
        )
    assert ended.returncode == 0, ended.stderr
    (session_id,) = app.sessions.open_ids()
    state = app.sessions.found(session_id, "default")
    assert state.finished is not None and state.finished.status == "success"
    audit = audit_session(app.sessions, session_id)
    assert (audit.verdict, audit.num_trained, audit.num_waiting) == ("pass", 1502, 0), audit.problems
    assert [(item.sequences, item.num_tokens, item.is_claimed) for item in audit.token_sources] == [((1,), 2, True)]
    assert len(worker.executed) == len({(target, seq_id) for target, seq_id, _ in worker.executed})
