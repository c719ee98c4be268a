"""The judge of Tinker servers finds a server that does requests twice, and none of its faults reaches our effects."""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from assay.serving.sessions.request_log import RequestLog
from served import app_in
from sessions import AnsweringWorker, on_socket, tinker_server
from tinker_judge.judge import Judge, Verdict, table
from tinker_judge.proxy import Fault


@pytest.fixture
def app(requires, tmp_path: Path) -> Any:
    requires("sdks", find_spec("tinker") is not None, "the tinker SDK is not installed")
    return app_in(tmp_path, method="supervised")


def verdicts_on(app: Any, worker: AnsweringWorker, *faults: Fault) -> Iterator[Verdict]:
    with on_socket(tinker_server(app)) as url, worker.at_work(), Judge(url, base="tiny").sitting() as judge:
        yield from [judge("sft", fault) for fault in faults]


def test_a_repeated_request_has_one_effect(app) -> None:
    faults = [Fault("after", "optim_step"), Fault("delayed", "forward_backward", 4)]
    verdicts = [*verdicts_on(app, AnsweringWorker(app.sessions), *faults)]
    assert [item.verdict for item in verdicts] == ["held", "held"], table(verdicts)


def test_a_server_that_does_a_request_as_often_as_it_hears_it_is_caught(app, monkeypatch) -> None:
    worker, append = AnsweringWorker(app.sessions), RequestLog.append

    def append_and_do_again(log: RequestLog, seq_id: int, kind: Any, *rest: Any, **named: Any) -> bool:
        is_new = append(log, seq_id, kind, *rest, **named)
        if not is_new and kind == "forward_backward":
            worker.num_passes[log.target] += 1
        return is_new

    monkeypatch.setattr(RequestLog, "append", append_and_do_again)
    # The second step's last pass of three: each chunk of a batch counts.
    (verdict,) = verdicts_on(app, worker, Fault("after", "forward_backward", 6))
    assert verdict.verdict in ("doubled", "changed"), table([verdict])
