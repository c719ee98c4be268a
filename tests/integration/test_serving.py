"""The API over a real server, a real worker and real runs, by the official SDK."""

import hashlib
import http.server
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import openai
import pytest

from assay.base.clock import SystemClock
from assay.base.config import LoadedConfig
from assay.data.dataset.tokens import train_tokenizer
from assay.elastic.supervisor import RestartPolicy
from assay.serving.admin.projects import ProjectRepository
from assay.serving.keys import KeyRepository
from assay.store.attempts import saved_attempts
from assay.store.commit_log import CommitLog
from assay.store.home import Home
from assay.store.launches import process_state, saved_launches
from assay.store.objects import open_store
from assay.store.run_results import saved_audit
from assay.workflows.bookkeeping import writer_of
from assay.workflows.run import plan_run, save_run
from assay.workflows.train import train_run
from kubernetes_cluster.cluster import missing_part
from kubernetes_run import CLAIM, IMAGE, cluster_with_assay
from served import write_models
from slurm_cluster import SlurmCluster, wait_until

WORDS = ["alpha", "beta", "gamma", "delta", "return", "yield", "import", "class", "lambda", "pass"]
ASSAY = [sys.executable, "-c", "from assay.cli.main import main; main()"]


def rows(num_rows: int = 700) -> bytes:
    """Random words; label: does 'return' occur more often than 'yield'?"""
    rng = random.Random(0)
    texts = [rng.choices(WORDS, k=rng.randrange(3, 40)) for _ in range(num_rows)]
    lines = [{"text": " ".join(words), "label": int(words.count("return") > words.count("yield"))} for words in texts]
    return b"\n".join(json.dumps(line).encode() for line in lines)


class Here:
    """A home with processes of `assay` on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = Home.at(folder / "home")
        self.models = folder / "models"
        self.models.mkdir()
        texts = [json.loads(line)["text"] for line in rows().splitlines()]
        train_tokenizer(texts, vocab_size=300).save(str(self.models / "tokenizer.json"))
        write_models(self.models)
        self._running: list[subprocess.Popen[str]] = []

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """A process of its own, its first line read."""
        process = subprocess.Popen(
            [*ASSAY, *arguments],
            env={**os.environ, **self.home.environment(), "OMP_NUM_THREADS": "1"},
            stderr=subprocess.PIPE,
            text=True,
        )
        self._running.append(process)
        return process

    def serve(self, port: int = 0) -> tuple[subprocess.Popen[str], openai.OpenAI]:
        server = self.start("serve", "--port", str(port), "--models", str(self.models))
        assert server.stderr is not None
        address = server.stderr.readline().split()[-1]
        return server, openai.OpenAI(base_url=address, api_key="any", max_retries=0)

    def work(self, *options: str) -> subprocess.Popen[str]:
        return self.start("serve", "worker", "--every", "0.1", *options)

    def kill(self, *processes: subprocess.Popen[str]) -> None:
        for process in processes:
            process.kill()
            process.wait()

    def end(self) -> None:
        for process in self._running:
            if process.poll() is None:
                self.kill(process)
            assert process.stderr is not None
            process.stderr.close()
        for path in self.home.folder.glob("*/run.json"):
            for launch in saved_launches(self.home.run(path.parent.name)):
                if launch.launcher == "background" and process_state(launch) == "running":
                    os.kill(int(launch.job), signal.SIGKILL)


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Here]:
    found = Here(tmp_path)
    try:
        yield found
    finally:
        found.end()


def create(sdk: openai.OpenAI, *, n_epochs: int, **options):
    file = sdk.files.create(file=("rows.jsonl", rows()), purpose="fine-tune")
    method = {"type": "classification", "classification": {"hyperparameters": {"n_epochs": n_epochs}}}
    return sdk.fine_tuning.jobs.create(model="tiny", training_file=file.id, seed=7, method=method, **options)


def undisturbed_digest(here: Here, job_id: str, name: str = "twin") -> str:
    """The weights of the same recipe on the same dataset, trained in one go."""
    run = here.home.run(job_id)
    twin = plan_run(here.home, LoadedConfig(dict(run.recipe), {}), world_size=1, run_id=name, store_url=None)
    save_run(here.home, twin)
    with writer_of(here.home, twin) as writer:
        train_run(here.home, twin, writer, world_size=1, policy=RestartPolicy())
    return CommitLog(open_store(twin.store_url)).finished().weights_digest


def ours(job: Any) -> dict[str, Any]:
    """What the SDK's type has no field for."""
    return job.x_assay


def messages(sdk: openai.OpenAI, job_id: str) -> list[str]:
    events = [*sdk.fine_tuning.jobs.list_events(job_id, limit=100)]
    return [event.message for event in reversed(events) if event.type == "message"]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_job_lives_through_pause_and_kills_of_server_and_worker_to_the_undisturbed_weights(
    here: Here,
) -> None:
    server, sdk = here.serve()
    worker = here.work()
    job = create(sdk, n_epochs=6, suffix="mine")
    jobs = sdk.fine_tuning.jobs
    wait_until(lambda: ours(jobs.retrieve(job.id))["committed_step"], "a first commit")

    assert jobs.pause(job.id).status in ("pausing", "paused")
    wait_until(lambda: jobs.retrieve(job.id).status == "paused", "the run to leave")
    paused_at = ours(jobs.retrieve(job.id))["committed_step"]
    request = here.start("train", "--resume", job.id, "--take-over")
    assert request.wait() == 2 and request.stderr is not None and "which is paused" in request.stderr.read()
    ProjectRepository(open_store(str(here.home.api)), SystemClock()).ensure("vision", by="")
    shared = jobs.checkpoints.list(job.id).data[0]
    sdk.fine_tuning.checkpoints.permissions.create(shared.fine_tuned_model_checkpoint, project_ids=["vision"])
    here.kill(server, worker)
    server, sdk = here.serve()
    jobs = sdk.fine_tuning.jobs
    worker = here.work()
    assert ours(jobs.retrieve(job.id))["committed_step"] == paused_at
    assert jobs.resume(job.id).status == "queued"
    wait_until(lambda: ours(jobs.retrieve(job.id))["committed_step"] > paused_at, "a commit behind the pause")
    here.kill(server, worker)  # the run goes on meanwhile
    server, sdk = here.serve()
    jobs = sdk.fine_tuning.jobs
    here.work()
    wait_until(lambda: jobs.retrieve(job.id).status == "succeeded", "the end")

    job = jobs.retrieve(job.id)
    assert ours(job)["weights_digest"] == undisturbed_digest(here, job.id)
    assert saved_audit(here.home.run(job.id).run_dir).verdict == "pass"
    assert len(saved_launches(here.home.run(job.id))) == 2  # one before the pause, one behind it
    output = messages(sdk, job.id)
    once = ("Fine-tuning job started", f"Paused at step {paused_at}", "The job has successfully completed")
    assert [output.count(item) for item in once] == [1, 1, 1]
    assert f"Fine-tuning job resumed from step {paused_at}" in output
    measured = [event.data["step"] for event in jobs.list_events(job.id, limit=100) if event.type == "metrics"]
    assert measured == [*range(ours(job)["total_steps"], 0, -1)]  # each step once, the newest first
    steps = [item.step_number for item in jobs.checkpoints.list(job.id)]
    assert steps[0] == ours(job)["total_steps"]
    assert shared.step_number in steps[3:] and len(steps) <= 6  # the last three, the best, a verified one, and it
    assert sdk.models.retrieve(job.fine_tuned_model).id.startswith("ft:tiny:default:mine:")
    table = sdk.files.content(job.result_files[0]).text.splitlines()
    assert table[0].startswith("step,train_loss,train_accuracy") and len(table) == len(measured) + 1
    assert here.home.api.is_dir() and not [*(here.home.api / "open").glob("*/*")]
    assert jobs.list().data == [job]
    with closing(sqlite3.connect(here.home.api_table)) as driver:
        assert driver.execute("SELECT job_id FROM jobs").fetchall() == [(job.id,)]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_run_whose_supervisor_is_killed_comes_back_by_itself_and_a_cancelled_one_keeps_its_commit(
    here: Here,
) -> None:
    _, sdk = here.serve()
    here.work()
    jobs = sdk.fine_tuning.jobs
    first = create(sdk, n_epochs=4)
    wait_until(lambda: ours(jobs.retrieve(first.id))["committed_step"], "a first commit")
    (launch,) = saved_launches(here.home.run(first.id))
    os.kill(int(launch.job), signal.SIGKILL)
    wait_until(lambda: jobs.retrieve(first.id).status == "succeeded", "the end")
    assert any(output.startswith("Interrupted at step") for output in messages(sdk, first.id))
    assert ours(jobs.retrieve(first.id))["weights_digest"] == undisturbed_digest(here, first.id)

    second = create(sdk, n_epochs=40)
    wait_until(lambda: ours(jobs.retrieve(second.id))["committed_step"], "a first commit")
    assert jobs.cancel(second.id).status == "cancelled"
    wait_until(lambda: any(output.startswith("Stopped at") for output in messages(sdk, second.id)), "the run to leave")
    assert jobs.checkpoints.list(second.id).data
    log = CommitLog(open_store(here.home.run(second.id).store_url))
    assert log.last_intact_commit() is not None and log.finished() is None


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_file_that_cannot_be_trained_on_fails_its_job_with_its_lines(here: Here) -> None:
    _, sdk = here.serve()
    here.work()
    data = b'{"text": "a", "label": 1}\n{"text": "b"}\nno json\n'
    file = sdk.files.create(file=("rows.jsonl", data), purpose="fine-tune")
    job = sdk.fine_tuning.jobs.create(model="tiny", training_file=file.id)
    wait_until(lambda: sdk.fine_tuning.jobs.retrieve(job.id).status == "failed", "the verdict")
    error = sdk.fine_tuning.jobs.retrieve(job.id).error
    assert (error.code, error.param) == ("invalid_training_file", "training_file")
    assert "line 2: 'label' must be" in error.message and "line 3: not JSON" in error.message


def highest_memory_mb(process: subprocess.Popen[str]) -> float:
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:"))


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_large_files_come_in_and_go_out_in_constant_memory(here: Here, tmp_path: Path) -> None:
    server, sdk = here.serve()
    sizes, sums, memory_mb = (1 << 20, 160 << 20), [], []
    for size in sizes:
        path = tmp_path / f"{size}.bin"
        with path.open("wb") as file:
            file.truncate(size)
            file.write(b"x")
        with path.open("rb") as file:
            whole = sdk.files.create(file=file, purpose="user_data")
        parts = sdk.uploads.upload_file_chunked(file=path, mime_type="x/y", purpose="user_data").file
        assert parts is not None and parts.bytes == whole.bytes == size
        for item in (whole, parts):
            with sdk.files.with_streaming_response.content(item.id) as response:
                sums.append(hashlib.sha256())
                for block in response.iter_bytes():
                    sums[-1].update(block)
            assert sums[-1].hexdigest() == ours(item)["sha256"]
        memory_mb.append(highest_memory_mb(server))
    assert memory_mb[1] - memory_mb[0] < 64
    assert len([*(here.home.api / "bytes").iterdir()]) == 2  # equal bytes lie once


class Hook(http.server.ThreadingHTTPServer):
    """Keeps what it is sent; the first time it is out of order."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Hooked)
        self.got: list[tuple[dict[str, str], str]] = []
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()


class _Hooked(http.server.BaseHTTPRequestHandler):
    server: Hook

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"])).decode()
        self.server.got.append((dict(self.headers), body))
        self.send_response(503 if len(self.server.got) == 1 else 200)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_budget_stops_a_job_its_costs_are_the_ledgers_and_its_end_is_told(here: Here) -> None:
    here.home.folder.mkdir(parents=True, exist_ok=True)
    (here.home.folder / "settings.yaml").write_text("webhook_hosts: [127.0.0.1]\n")
    keys = KeyRepository(open_store(str(here.home.api)), SystemClock())
    admin = keys.make(project="default", name="", scopes=("admin",), lives_s=None)
    key = keys.make(project="ours", name="", scopes=("read", "write"), lives_s=None)
    _, sdk = here.serve()
    sdk = sdk.with_options(api_key=key.secret)
    sdk.admin_api_key = admin.secret
    here.work()
    jobs, hook = sdk.fine_tuning.jobs, Hook()
    events = sdk.webhooks.create(
        name="h", url=f"http://127.0.0.1:{hook.server_address[1]}/", event_types=["fine_tuning.job.succeeded"]
    )
    job = create(sdk, n_epochs=400, extra_body={"x_assay": {"budget_device_hours": 100}})
    wait_until(lambda: ours(jobs.retrieve(job.id))["committed_step"], "a first commit", timeout_s=300)
    (attempt,) = saved_attempts(Path(here.home.run(job.id).run_dir))
    budget_s = time.time() - attempt.started_s + 5.0
    jobs.resume(job.id, extra_body={"x_assay": {"budget_device_hours": budget_s / 3600}})
    wait_until(lambda: jobs.retrieve(job.id).status == "paused", "the budget to be spent", timeout_s=300)
    paused = ours(jobs.retrieve(job.id))
    assert paused["budget_spent"] == "job"
    assert budget_s <= paused["charged_device_hours"] * 3600 <= budget_s + 15
    with pytest.raises(openai.BadRequestError, match=r"Raise x_assay\.budget_device_hours"):
        jobs.resume(job.id)
    jobs.cancel(job.id)

    second = create(sdk, n_epochs=6)
    wait_until(lambda: ours(jobs.retrieve(second.id))["committed_step"], "a first commit", timeout_s=300)
    (launch,) = saved_launches(here.home.run(second.id))
    os.kill(int(launch.job), signal.SIGKILL)
    wait_until(lambda: jobs.retrieve(second.id).status == "succeeded", "the end", timeout_s=600)
    wait_until(lambda: len(hook.got) >= 2, "the message, again")
    assert len({headers["webhook-id"] for headers, _ in hook.got}) == 1
    event = sdk.webhooks.unwrap(hook.got[1][1], hook.got[1][0], secret=events.signing_secret)
    assert (event.type, event.data.id) == ("fine_tuning.job.succeeded", second.id)
    hook.shutdown()
    hook.server_close()

    with here.home.open_ledger() as ledger:
        held_h = {item: sum(part.held_s for part in ledger.phase_seconds(item)) / 3600 for item in (job.id, second.id)}
    page = sdk.admin.organization.usage.costs(start_time=int(job.created_at), group_by=["line_item"])
    costs = {
        item: sum(result.quantity for bucket in page.data for result in bucket.results if result.line_item == item)
        for item in held_h
    }
    assert costs == pytest.approx(held_h, rel=1e-3)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_job_on_slurm_says_what_the_scheduler_waits_for_and_comes_back_from_a_preemption(
    here: Here, slurm: SlurmCluster
) -> None:
    _, sdk = here.serve()
    here.work("--on", "slurm", "--partition", "low", "--nodes", "1")
    jobs = sdk.fine_tuning.jobs
    job = create(sdk, n_epochs=6)
    wait_until(lambda: ours(jobs.retrieve(job.id))["committed_step"], "a first commit")
    assert jobs.retrieve(job.id).status == "running"
    assert ours(jobs.retrieve(job.id))["where"].startswith("Slurm job ")
    slurm.preempt(seconds=4)
    wait_until(lambda: (ours(jobs.retrieve(job.id))["queue"] or {}).get("code") == "scheduler", "Slurm's word")
    held = jobs.retrieve(job.id)
    assert held.status == "queued" and "is pending: " in ours(held)["queue"]["blocked_by"]
    wait_until(lambda: jobs.retrieve(job.id).status == "succeeded", "the end", timeout_s=300)
    assert ours(jobs.retrieve(job.id))["weights_digest"] == undisturbed_digest(here, job.id)
    assert "The cluster's scheduler started it" in messages(sdk, job.id)
    assert len(saved_launches(here.home.run(job.id))) == 1  # the same job of Slurm's all the time

    second = create(sdk, n_epochs=40)
    wait_until(lambda: ours(jobs.retrieve(second.id))["committed_step"], "a first commit")
    jobs.pause(second.id)
    wait_until(lambda: jobs.retrieve(second.id).status == "paused", "the run to leave")
    assert slurm.call("squeue", "-h") == ""


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_job_on_kubernetes_waits_while_it_is_suspended_and_a_paused_one_leaves_nothing(
    here: Here, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, requires
) -> None:
    requires("netns", missing_part() is None, missing_part() or "")
    (folder := tmp_path / "cluster").mkdir()
    shared = tmp_path_factory.getbasetemp()
    with cluster_with_assay(folder, shared, monkeypatch) as cluster:
        _, sdk = here.serve()
        here.work("--on", "kubernetes", "--image", IMAGE, "--claim", f"{CLAIM}:{shared}", "--cpu", "1")
        jobs = sdk.fine_tuning.jobs
        job = create(sdk, n_epochs=20)
        wait_until(lambda: ours(jobs.retrieve(job.id))["committed_step"], "a first commit", timeout_s=180)
        assert ours(jobs.retrieve(job.id))["where"].startswith("Kubernetes Job default/assay-ftjob-")
        name = ours(jobs.retrieve(job.id))["where"].rpartition("/")[2]
        cluster.suspend(name)
        wait_until(
            lambda: (ours(jobs.retrieve(job.id))["queue"] or {}).get("code") == "scheduler", "the cluster's word"
        )
        assert "is pending: the Job is suspended" in ours(jobs.retrieve(job.id))["queue"]["blocked_by"]
        cluster.suspend(name, suspended=False)
        wait_until(lambda: jobs.retrieve(job.id).status == "succeeded", "the end", timeout_s=300)
        assert ours(jobs.retrieve(job.id))["weights_digest"] == undisturbed_digest(here, job.id)
        assert len(saved_launches(here.home.run(job.id))) == 1  # the same Job all the time

        second = create(sdk, n_epochs=400)
        wait_until(lambda: ours(jobs.retrieve(second.id))["committed_step"], "a first commit", timeout_s=180)
        jobs.pause(second.id)
        wait_until(lambda: jobs.retrieve(second.id).status == "paused", "the run to leave")
        assert [item["metadata"]["name"] for item in cluster.request("GET", "/apis/batch/v1/jobs")["items"]] == [name]


def test_the_server_loads_nothing_that_trains() -> None:
    program = (
        "import sys\nimport assay.serving.server, assay.serving.openai.app\n"
        "print([name for name in ('torch', 'transformers', 'ortools', 'sklearn') if name in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert out.splitlines() == ["[]"]
