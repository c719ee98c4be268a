"""The benchmark of serving asks a real server, before a store that the real code reads."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import serve_store
from assay.base.clock import SystemClock
from assay.serving.openai.app_state import AppState
from assay.store.objects import open_store
from served import sdk_of, write_models

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "serve.py"


def test_its_jobs_are_read_as_those_that_a_worker_made(tmp_path: Path) -> None:
    home = serve_store.make_home(tmp_path / "home", 3, write_models(tmp_path / "models"))
    app = AppState.of(open_store(str(home.api)), {}, SystemClock())
    sdk = sdk_of(app)
    sdk.api_key = (home.folder / serve_store.SECRET_FILE).read_text()
    jobs = [*sdk.fine_tuning.jobs.list()]
    assert [job.status for job in jobs] == ["succeeded"] * 4
    long_job, last = jobs[0].id, jobs[-1].id
    briefly = app.jobs.state(last)
    events = sdk.fine_tuning.jobs.list_events(long_job, limit=100).data
    assert len(events) == 100 and jobs[0].x_assay["committed_step"] == serve_store.LONG_JOB_STEPS
    for brief in home.api.glob("ftjob/*/log/brief"):
        brief.unlink()  # from the entries themselves
    app = AppState.of(open_store(str(home.api)), {}, SystemClock())
    assert app.jobs.state(last) == briefly is not None
    assert sorted(app.jobs.newest(serve_store.PROJECT)) == sorted(app.jobs.ids())


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_it_measures_and_ends_with_one_object(tmp_path: Path) -> None:
    arguments = ["--jobs", "300", "--seconds", "1", "--rounds", "3", "--home", str(tmp_path)]
    done = subprocess.run([sys.executable, str(BENCHMARK), *arguments], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    named = {
        "create_ms",
        "retrieve_p99_ms",
        "events_page_ms",
        "checkpoint_ready_s",
        "checkpoint_warm_s",
    }
    assert named <= set(found)
    assert all(found[name] > 0 for name in named)
