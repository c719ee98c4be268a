"""The API before a store of very many jobs: `benchmarks/serve.py [--jobs 100000] [--train] [--seconds 20]`.

A home with so many jobs that have ended is made once under `--home`. `assay serve` answers real HTTP, with a
key, from a process of its own; with `--train` a job of the same API is trained beside it by `assay serve worker`, on
one rank. Clients are threads of this process, so what they take of the machine is in the times.

`retrieve`: any of the jobs, at 100 requests/s, from the moment that each was due. `jobs_page`: a hundred jobs
behind any of them, that nobody has looked at before, and the newest hundred again and again; all are in the
server's table by then, which takes `table`, once in a home's life with one version of assay. `events_page`: a
hundred of the ten thousand of one job. `create`: by the SDK, one after another, each durable.
`checkpoint_ready`: from the moment that a commit lies in the run's log until the checkpoint has answered as
`model=`, which takes a process and its imports; `checkpoint_warm`: asked once more. The last line printed is
one JSON object.
"""

import http.client
import json
import os
import random
import sqlite3
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit

import openai
import yaml

from assay.data.dataset.tokens import train_tokenizer
from assay.records.commit import Commit
from assay.store.commit_log import CommitLog
from assay.store.home import Home
from assay.store.objects import open_store
from harness import CHECKOUT, Target, describe_machine, options_of, peak_rss_mb, print_result
from serve_store import LONG_JOB_FILE, SECRET_FILE, make_home

LIMITS = {
    "retrieve_p99_ms": 20.0, "jobs_page_ms": 30.0, "events_page_ms": 30.0, "create_ms": 50.0, "idle_mb": 300.0,
    "start_cpu_s": 3.0, "checkpoint_ready_s": 5.0, "checkpoint_warm_s": 1.0,
}  # fmt: skip
TARGETS = [Target(name, bound, at_most=True) for name, bound in LIMITS.items()]
REQUESTS_PER_S = 100
CLIENTS = 8
WORDS = ("alpha", "beta", "gamma", "delta", "return", "yield", "import", "class", "lambda", "pass")
RECIPE = {
    "loader": {"lanes": 8, "global_batch_size": 32, "window_rows": 16, "threads": 1},
    "method": {
        "type": "classify",
        "encoder": {
            "type": "new", "vocab_size": 300, "hidden_size": 64, "num_layers": 2, "num_heads": 2,
            "intermediate_size": 128, "max_tokens": 128,
        },
    },
    "trainer": {"commit_every": 20, "optimizer": {"learning_rate": 1e-3}},
}  # fmt: skip


class Server(NamedTuple):
    """`assay serve`, and what its start took."""

    process: subprocess.Popen[str]
    url: str
    start_cpu_s: float


class Client:
    """One connection that stays."""

    def __init__(self, url: str, secret: str) -> None:
        parts = urlsplit(url)
        self._path = parts.path
        self._headers = {"authorization": f"Bearer {secret}"}
        self._connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=60)

    def get(self, path: str, **query: object) -> Any:
        """The JSON of an answer."""
        request = f"{self._path}{path}?{urlencode(query)}" if query else f"{self._path}{path}"
        self._connection.request("GET", request, headers=self._headers)
        response = self._connection.getresponse()
        body = response.read()
        if response.status != 200:
            raise SystemExit(f"{request}: {response.status} {body[:300]!r}")
        return json.loads(body)


def rows(num_rows: int) -> str:
    """Random words; label: does 'return' occur more often than 'yield'?"""
    rng = random.Random(0)
    texts = [rng.choices(WORDS, k=rng.randrange(3, 40)) for _ in range(num_rows)]
    lines = [{"text": " ".join(words), "label": int(words.count("return") > words.count("yield"))} for words in texts]
    return "\n".join(json.dumps(line) for line in lines)


def write_models(folder: Path) -> Path:
    """A base model of some ten thousand weights."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = [json.loads(line)["text"] for line in rows(500).splitlines()]
    train_tokenizer(texts, vocab_size=300).save(str(folder / "tokenizer.json"))
    trainable = {"recipe": RECIPE, "max_tokens": 128, "auto": {"n_epochs": 2}}
    model = {"tokenizer": "tokenizer.json", "methods": {"classification": trainable}}
    (folder / "tiny.yaml").write_text(yaml.safe_dump(model))
    return folder


@contextmanager
def started(home: Home, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A process of `assay` on the home, ended with the block."""
    environment = {
        **os.environ, **home.environment(), "PYTHONPATH": str(CHECKOUT / "src"), "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-m", "assay", *arguments], env=environment, stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


@contextmanager
def serving(home: Home, models: Path) -> Iterator[Server]:
    """A server that has answered once."""
    with started(home, "serve", "--port", "0", "--models", str(models)) as process:
        assert process.stderr is not None
        url = process.stderr.readline().split()[-1]
        Client(url, secret_of(home)).get("/fine_tuning/jobs")
        yield Server(process, url, cpu_s(process.pid))


@contextmanager
def training(home: Home, sdk: openai.OpenAI) -> Iterator[str]:
    """A job that trains while the block runs; its id."""
    file = sdk.files.create(file=("rows.jsonl", rows(20_000).encode()), purpose="fine-tune")
    method: Any = {"type": "classification", "classification": {"hyperparameters": {"n_epochs": 500}}}
    job = sdk.fine_tuning.jobs.create(model="tiny", training_file=file.id, method=method)
    with started(home, "serve", "worker", "--every", "0.2"):
        wait_until(lambda: sdk.fine_tuning.jobs.retrieve(job.id).status == "running")
        yield job.id
        sdk.fine_tuning.jobs.cancel(job.id)
        wait_until(lambda: not (home.api / "open" / "ftjob" / job.id).exists())


def wait_until(is_so: Callable[[], bool], *, limit_s: float = 300.0) -> None:
    """Look until it is so."""
    until_s = time.monotonic() + limit_s
    while not is_so():
        if time.monotonic() > until_s:
            raise SystemExit("waited in vain")
        time.sleep(0.2)


def secret_of(home: Home) -> str:
    """The key that opens the jobs' project."""
    return (home.folder / SECRET_FILE).read_text()


def cpu_s(pid: int) -> float:
    """Processor time that a process has taken."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def table_s(home: Home, num_jobs: int) -> float:
    """Until the server has taken all jobs into its table; at once where an earlier one has."""
    began_s = time.monotonic()
    with closing(sqlite3.connect(home.api_table)) as driver:
        while driver.execute("SELECT count(*) FROM jobs").fetchone()[0] < num_jobs:
            time.sleep(1)
    return time.monotonic() - began_s


def retrieve_s(server: Server, secret: str, job_ids: list[str], seconds: float) -> list[float]:
    """From when each was due until its answer was there."""
    clients = threading.local()
    began_s = time.perf_counter() + 0.5

    def retrieve_one(number: int) -> float:
        if not hasattr(clients, "one"):
            clients.one = Client(server.url, secret)
        due_s = began_s + number / REQUESTS_PER_S
        time.sleep(max(0.0, due_s - time.perf_counter()))
        clients.one.get(f"/fine_tuning/jobs/{random.choice(job_ids)}")
        return time.perf_counter() - due_s

    with ThreadPoolExecutor(CLIENTS) as pool:
        return [*pool.map(retrieve_one, range(int(seconds * REQUESTS_PER_S)))]


def median_ms(call: Callable[[], object], rounds: int) -> float:
    """Of one call."""
    took = []
    for _ in range(rounds):
        began_s = time.perf_counter()
        call()
        took.append(time.perf_counter() - began_s)
    return statistics.median(took) * 1e3


def timed(name: str, call: Callable[[], object], rounds: int, server: Server) -> dict[str, float]:
    """What a client waits for, the median; and what the server's processor takes, the mean."""
    before_s = cpu_s(server.process.pid)
    wall_ms = median_ms(call, rounds)
    return {f"{name}_ms": wall_ms, f"{name}_cpu_ms": (cpu_s(server.process.pid) - before_s) / rounds * 1e3}


def measure_http(server: Server, home: Home, seconds: float, rounds: int) -> dict[str, float]:
    """What clients wait for."""
    secret, rng = secret_of(home), random.Random(0)
    job_ids = sorted(path.name for path in (home.api / "ftjob").iterdir())
    client, jobs = Client(server.url, secret), "/fine_tuning/jobs"

    def page(path: str, **query: object) -> list[dict[str, Any]]:
        data: list[dict[str, Any]] = client.get(path, limit=100, **query)["data"]
        return data

    long_job = f"{jobs}/{(home.folder / LONG_JOB_FILE).read_text()}/events"
    cursors = [event["id"] for event in page(long_job)]
    found = {
        **timed("jobs_page", lambda: page(jobs, after=rng.choice(job_ids[200:])), rounds, server),
        **timed("jobs_page_again", lambda: page(jobs), rounds, server),
        **timed("events_page", lambda: page(long_job, after=rng.choice(cursors)), rounds, server),
    }
    before_s = cpu_s(server.process.pid)
    took = sorted(retrieve_s(server, secret, job_ids, seconds))
    found["retrieve_p50_ms"] = took[len(took) // 2] * 1e3
    found["retrieve_p99_ms"] = took[int(len(took) * 0.99)] * 1e3
    found["retrieve_cpu_ms"] = (cpu_s(server.process.pid) - before_s) / len(took) * 1e3
    return found


def measure_create(sdk: openai.OpenAI, server: Server, rounds: int) -> dict[str, float]:
    """A file of a line once, and jobs of it."""
    file = sdk.files.create(file=("rows.jsonl", rows(10).encode()), purpose="fine-tune")
    created: list[str] = []

    def create() -> None:
        created.append(sdk.fine_tuning.jobs.create(model="tiny", training_file=file.id).id)

    found = timed("create", create, rounds, server)
    for job_id in created:
        sdk.fine_tuning.jobs.cancel(job_id)
    return found


def measure_checkpoints(home: Home, sdk: openai.OpenAI, job_id: str) -> dict[str, float]:
    """Of three checkpoints of a job that goes on, the medians."""
    request: Any = {"input": "return yield", "questions": [{"type": "predicate", "instructions": ""}]}
    ready_s, warm_s = [], []
    for _ in range(3):
        completed, newest = None, None
        while completed is None:
            with suppress(openai.BadRequestError, IndexError):  # let go before it was loaded; none is there yet
                newest = sdk.fine_tuning.jobs.checkpoints.list(job_id).data[0]
                completed = sdk.decisions.create(model=newest.fine_tuned_model_checkpoint, **request)
        assert newest is not None
        ready_s.append(time.time() - committed_at_s(home, job_id, newest.step_number))
        again = partial(sdk.decisions.create, model=newest.fine_tuned_model_checkpoint, **request)
        warm_s.append(median_ms(again, 5) / 1e3)
    return {"checkpoint_ready_s": statistics.median(ready_s), "checkpoint_warm_s": statistics.median(warm_s)}


def committed_at_s(home: Home, job_id: str, step: int) -> float:
    """When the entry of a commit was put."""
    run = home.run(job_id)
    entries = enumerate(CommitLog(open_store(run.store_url)).entries())
    number = next(number for number, item in entries if isinstance(item, Commit) and item.step == step)
    return (Path(run.store_url) / "log" / f"{number:08d}.json").stat().st_mtime


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--train", action="store_true", help="train a job beside it")
    parser.add_argument("--seconds", type=float, default=20.0, help="of retrieving")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--home", type=Path, default=Path("build/serve"))
    options = parser.parse_args()
    models = write_models(options.home / "models")
    began_s = time.monotonic()
    home = make_home(options.home / f"home-{options.jobs}", options.jobs, models)
    print(f"{options.jobs:,} jobs made or found in {time.monotonic() - began_s:.0f} s")
    describe_machine()
    with serving(home, models) as server:
        found: dict[str, float] = {"start_cpu_s": server.start_cpu_s}
        found["table_s"] = table_s(home, options.jobs)
        found["idle_mb"] = peak_rss_mb(server.process.pid)
        sdk = openai.OpenAI(base_url=server.url, api_key=secret_of(home), max_retries=0)

        def measure() -> None:
            found.update(measure_http(server, home, options.seconds, options.rounds))
            found.update(measure_create(sdk, server, options.rounds))

        if not options.train:
            measure()
        with training(home, sdk) as job_id:
            if options.train:
                measure()
            found.update(measure_checkpoints(home, sdk, job_id))
        found["busy_mb"] = peak_rss_mb(server.process.pid)
    print_result({"jobs": options.jobs, "beside_training": options.train, **found}, TARGETS)


if __name__ == "__main__":
    main()
