"""Times the dashboard in a browser, and logging, reading and drawing a metric beside TensorBoard, MLflow and trackio.

    .venv-sinks/bin/python benchmarks/dashboard.py                 everything, in about eight minutes
    .venv-sinks/bin/python benchmarks/dashboard.py --only peers    one part: peers, pages, zoom, live or training
    .venv-sinks/bin/python benchmarks/dashboard.py --home HOME     the pages of a home of benchmarks/dashboard_home.py
    .venv-sinks/bin/python benchmarks/dashboard.py --only live --live 600
    .venv-sinks/bin/python benchmarks/dashboard.py --tiny          everything in small, in a minute

    peers      a curve of 1 M points is logged, read back twice (the first read indexes it) and drawn; 100 runs are
               compared
    pages      first view, CPU time of the server and size of each page; the start of `assay serve`
    zoom       a curve of 10 M points
    live       twenty open pages of twenty runs that log each second; the heap of one of them in the end
    training   a process that computes and logs steps, while an open page shows its run or, in turns, another run that
               logs as often: the machine is as busy in both, so the difference is what being watched costs

All contenders run on this machine and are shown in one browser (Debian's Chromium). A first curve is timed from the
start of the tool's server, with all points on disk, to the first frame that shows the curve. Tools that are not
installed are left out. Prints figures, ratios, goals (those that are missed are marked) and one JSON object.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from assay.records.run import Attempt, PhaseSeconds, Run
from assay.store.attempts import save_attempt
from assay.store.home import Home
from assay.store.metrics.curves import metric_series
from assay.store.metrics.fold import fold_run
from assay.store.metrics.segment import Points, SegmentWriter, segment_path
from harness import CHECKOUT, Median, Target, describe_machine, in_turn, options_of, print_result

BROWSER_WAIT_MS = 120_000
HEAP_BYTES = "async () => performance.memory.usedJSHeapSize"
CURVE = "canvas[role=img]"
MAX_STEPS_COMPARED = 1_000
LIVE_PAGES = 20
METRICS = [f"metric_{number}" for number in range(17)] + ["loss", "tokens", "step_s"]
TARGETS = [
    *(Target(f"log: {name} / assay", 1.0, at_most=False) for name in ("tensorboard", "mlflow", "trackio")),
    *(
        Target(f"{read}: {name} / assay", 10.0, at_most=False)
        for read in ("read", "read_again")
        for name in ("tensorboard", "mlflow", "trackio")
    ),
    Target("first_curve: tensorboard / assay", 3.0, at_most=False),
    Target("compared: tensorboard / assay", 1.0, at_most=False),
    Target("pages: view_ms", 1_000.0, at_most=True),
    Target("pages: server_cpu_ms", 200.0, at_most=True),
    Target("pages: kilobytes", 300.0, at_most=True),
    Target("zoom: zoom_largest_ms", 150.0, at_most=True),
    Target("zoom: draw_largest_ms", 150.0, at_most=True),
    Target("live: server_share", 0.10, at_most=True),
    Target("live: heap_megabytes", 100.0, at_most=True),
    Target("training: cpu_more", 0.002, at_most=True),
    Target("training: seconds_more", 0.002, at_most=True),
]
"""Of ratios, the peer's time over ours; of pages, the largest."""


class Tool(NamedTuple):
    """A contender: each function gets the folder of its data."""

    log: Callable[[Path, np.ndarray], None]
    read: Callable[[Path], int]
    """Reads all points back and returns their number."""
    serve: Callable[[Path, int], list[str]] | None
    """The command of its server on a port; None if it shows no pages."""
    curve: tuple[str, str] = ("", "")
    """Address of a page with the curve, and the selector of the curve."""
    log_many: Callable[[Path, int], None] | None = None
    compared: tuple[str, str] = ("", "")
    """The same for a page that compares many runs."""


# assay


def _assay_run(home: Home, run_id: str, num_steps: int, *, is_running: bool = False) -> Run:
    run_dir = home.run_dir(run_id)
    run = Run(
        run_id=run_id, created_s=1_795_000_000.0, recipe={"name": "curve"}, recipe_sha256="c" * 64,
        dataset_fingerprint="d" * 64, code_version="0.1.0", run_dir=str(run_dir), store_url=str(run_dir),
        num_steps=num_steps,
    )  # fmt: skip
    run_dir.mkdir(parents=True)
    (run_dir / "run.json").write_text(run.to_json(), encoding="utf-8")
    attempt = Attempt.model_validate(
        {
            "run_id": run_id, "attempt": 1, "world_size": 1, "start_step": 0, "started_s": run.created_s,
            "folder": str(run_dir), "code_version": "0.1.0", "outcome": "running" if is_running else "succeeded",
            "ended_s": None if is_running else run.created_s + 1,
            "processor": {"model": "cpu", "instructions": "", "torch": ""},
            "environment": dict.fromkeys(
                ("python", "kernel", "driver", "image", "user", "launcher", "job", "partition"), ""
            ),
        }
    )  # fmt: skip
    save_attempt(run_dir, attempt)
    with home.open_ledger() as ledger:
        ledger.record_run(run)
        ledger.record_attempt(attempt)
        # As the supervisor does once an attempt has ended.
        phases = PhaseSeconds(run_id=run_id, attempt=1, rank=0, held_s=1.0, seconds={"compute": 1.0})
        if not is_running:
            ledger.record_phase_seconds(phases)
    return run


def _writer(run: Run) -> SegmentWriter:
    return SegmentWriter(segment_path(Path(run.run_dir), 1, 0), run_id=run.run_id, attempt=1, rank=0)


def _assay_log(folder: Path, values: np.ndarray) -> None:
    writer = _writer(_assay_run(Home.at(folder), "curve", len(values)))
    for step, value in enumerate(values.tolist()):
        writer.log(step, {"loss": value})
    writer.close()


def _assay_read(folder: Path) -> int:
    with Home.at(folder).open_ledger() as ledger:
        fold_run(ledger, ledger.run("curve"))
        return len(metric_series(ledger, "curve", "loss", max_points=1 << 30).steps)


def _assay_log_many(folder: Path, num_runs: int) -> None:
    for number in range(num_runs):
        run = _assay_run(Home.at(folder), f"run-{number:03d}", MAX_STEPS_COMPARED)
        steps = np.arange(MAX_STEPS_COMPARED)
        writer = _writer(run)
        writer.log_series("loss", Points(steps, steps.astype(float), np.exp(-steps / 300) + number))
        writer.close()
        with Home.at(folder).open_ledger() as ledger:
            fold_run(ledger, run)


def _assay_serve(folder: Path, port: int) -> list[str]:
    return ["env", f"ASSAY_HOME={folder}", sys.executable, "-m", "assay", "serve", "--port", str(port)]


# The others


def _tensorboard_log(folder: Path, values: np.ndarray) -> None:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(str(folder))
    for step, value in enumerate(values.tolist()):
        summary = Summary(value=[Summary.Value(tag="loss", simple_value=value)])
        writer.add_event(Event(step=step, wall_time=1e9 + step, summary=summary))
    writer.close()


def _tensorboard_read(folder: Path) -> int:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    accumulator.Reload()
    return len(accumulator.Scalars("loss"))


def _tensorboard_log_many(folder: Path, num_runs: int) -> None:
    for number in range(num_runs):
        _tensorboard_log(folder / f"run-{number:03d}", np.exp(-np.arange(MAX_STEPS_COMPARED) / 300) + number)


def _tensorboard_serve(folder: Path, port: int) -> list[str]:
    return [sys.executable, "-m", "tensorboard.main", "--logdir", str(folder), "--port", str(port)]


def _mlflow_log(folder: Path, values: np.ndarray) -> None:
    from mlflow.entities import Metric

    client, run_id = _mlflow_run(folder)
    batch = 1_000  # the most that MLflow takes at once
    for start in range(0, len(values), batch):
        metrics = [
            Metric("loss", value, 0, start + at) for at, value in enumerate(values[start : start + batch].tolist())
        ]
        client.log_batch(run_id, metrics=metrics)


def _mlflow_run(folder: Path) -> tuple[Any, str]:
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    from mlflow import MlflowClient

    client = MlflowClient((folder / "mlruns").as_uri())
    found = client.search_experiments()
    runs = client.search_runs([experiment.experiment_id for experiment in found])
    return client, runs[0].info.run_id if runs else client.create_run(found[0].experiment_id).info.run_id


def _mlflow_read(folder: Path) -> int:
    client, run_id = _mlflow_run(folder)
    return len(client.get_metric_history(run_id, "loss"))


def _trackio_storage(folder: Path) -> Any:
    os.environ["TRACKIO_DIR"] = str(folder)
    from trackio.sqlite_storage import SQLiteStorage

    return SQLiteStorage


def _trackio_log(folder: Path, values: np.ndarray) -> None:
    storage, batch = _trackio_storage(folder), 1_000
    for start in range(0, len(values), batch):
        part = values[start : start + batch].tolist()
        storage.bulk_log("bench", "curve", [{"loss": value} for value in part], list(range(start, start + len(part))))


def _trackio_read(folder: Path) -> int:
    return len(_trackio_storage(folder).get_logs("bench", "curve"))


def tools() -> dict[str, Tool]:
    """Return the contenders that are installed, ours first."""
    found = {
        "assay": Tool(
            _assay_log, _assay_read, _assay_serve, ("/runs/curve#training-loss", CURVE), _assay_log_many,
            ("/compare?where=name=curve", "svg[role=img], canvas[role=img]"),
        ),
        "tensorboard": Tool(
            _tensorboard_log, _tensorboard_read, _tensorboard_serve, ("/#timeseries", "line-chart canvas"),
            _tensorboard_log_many, ("/#timeseries", "line-chart canvas"),
        ),
        "mlflow": Tool(_mlflow_log, _mlflow_read, None),
        "trackio": Tool(_trackio_log, _trackio_read, None),
    }  # fmt: skip
    return {name: tool for name, tool in found.items() if find_spec(name)}


# Timing


def _timed(call: Callable[[], Any]) -> tuple[float, Any]:
    began_s = time.perf_counter()
    result = call()
    return time.perf_counter() - began_s, result


@contextmanager
def served(command: list[str], port: int) -> Iterator[int]:
    """Run a server; yield its process id once it listens."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=CHECKOUT)
    try:
        ends_s = time.monotonic() + 120
        while time.monotonic() < ends_s:
            with socket.socket() as connection:
                if connection.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.02)
        yield process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def free_port() -> int:
    """Return a port that nothing listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextmanager
def browser() -> Iterator[Any]:
    """Open Debian's Chromium."""
    from playwright.sync_api import sync_playwright

    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--enable-precise-memory-info"])
        yield opened
        opened.close()


def first_drawn_s(opened: Any, command: list[str], port: int, page: tuple[str, str]) -> float:
    """Return the seconds from the start of a server to the first frame with what the selector names."""
    began_s = time.perf_counter()
    with served(command, port):
        tab = opened.new_page(viewport={"width": 1280, "height": 900})
        tab.goto(f"http://127.0.0.1:{port}{page[0]}")
        while time.perf_counter() - began_s < BROWSER_WAIT_MS / 1000:
            try:
                tab.wait_for_selector(page[1], state="attached", timeout=2_000)
                break
            except Exception:  # a page without data does not look again by itself in time
                tab.reload()
        tab.evaluate("() => new Promise(requestAnimationFrame)")
        drawn_after_s = time.perf_counter() - began_s
        tab.close()
    return drawn_after_s


def peers(num_points: int, num_runs: int) -> dict[str, dict[str, float]]:
    """Time each tool's logging, reading and drawing of a curve, and a page that compares runs."""
    values = np.exp(-np.arange(num_points) / num_points * 5) + 0.01 * np.random.default_rng(0).standard_normal(
        num_points
    )
    figures: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder, browser() as opened:
        for name, tool in tools().items():
            one, many = Path(folder) / name / "one", Path(folder) / name / "many"
            one.mkdir(parents=True)
            many.mkdir()
            log_s, _ = _timed(partial(tool.log, one, values))
            read_s, num_read = _timed(partial(tool.read, one))
            again_s, _ = _timed(partial(tool.read, one))
            found = {"log_s": log_s, "read_s": read_s, "read_again_s": again_s, "points_read": float(num_read)}
            if tool.serve is not None and tool.log_many is not None:
                port = free_port()
                found["first_curve_s"] = first_drawn_s(opened, tool.serve(one, port), port, tool.curve)
                tool.log_many(many, num_runs)
                port = free_port()
                found["compared_s"] = first_drawn_s(opened, tool.serve(many, port), port, tool.compared)
            figures[name] = found
            print(f"{name:<12}" + "  ".join(f"{key} {value:,.3f}" for key, value in found.items()), flush=True)
    ours = figures["assay"]
    ratios = {
        f"{key.removesuffix('_s')}: {name} / assay": found[key] / ours[key]
        for name, found in figures.items()
        for key in found
        if name != "assay" and key.endswith("_s")
    }
    return {**figures, "ratios": ratios}


def _cpu_s(process_id: int) -> float:
    fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def page_figures(home: Path, run_id: str) -> dict[str, dict[str, float]]:
    """Time the pages of a home: first view, CPU time of the server, bytes; and the start of the server."""
    port, began_s = free_port(), time.perf_counter()
    figures: dict[str, dict[str, float]] = {}
    with browser() as opened, served(_assay_serve(home, port), port) as process_id:
        site = f"http://127.0.0.1:{port}"
        request = opened.new_context().request
        request.get(site)
        figures["start"] = {"seconds": time.perf_counter() - began_s, "cpu_s": _cpu_s(process_id)}
        for address in ("/", "/runs", f"/runs/{run_id}", f"/runs/{run_id}/metrics", "/benchmarks", "/cost"):
            request.get(site + address)  # the server imports what the page needs
            tab = opened.new_page(viewport={"width": 1280, "height": 900})
            before_s = _cpu_s(process_id)
            view_s, response = _timed(partial(tab.goto, site + address, wait_until="load"))
            cpu_s = _cpu_s(process_id) - before_s
            figures[address] = {
                "view_ms": 1000 * view_s,
                "server_cpu_ms": 1000 * cpu_s,
                "kilobytes": len(response.body()) / 1000,
            }
            tab.close()
    pages = [found for address, found in figures.items() if address != "start"]
    figures["largest"] = {key: max(found[key] for found in pages) for key in pages[0]}
    return figures


def zoom_figures(folder: Path, num_points: int) -> dict[str, float]:
    """Time the zoom of a long curve, from the key to the frame with the new columns, and its drawing."""
    home, port = Home.at(folder), free_port()
    steps = np.arange(num_points)
    with home.open_ledger() as ledger:
        run = _assay_run(home, "long", num_points)
        writer = _writer(run)
        writer.log_series("loss", Points(steps, steps.astype(float), np.exp(-steps / num_points) + steps % 7))
        writer.close()
        fold_run(ledger, run)
    with browser() as opened, served(_assay_serve(folder, port), port):
        tab = _page_with_curves(opened, f"http://127.0.0.1:{port}/runs/long")
        plot = tab.locator(".plot:has(canvas)").first
        plot.focus()
        zoom_ms = []
        for key in ("+", "+", "ArrowRight", "+", "ArrowLeft", "-", "+", "+", "+", "+", "-", "0"):
            began_s = time.perf_counter()
            before = plot.get_attribute("data-drawn")
            tab.keyboard.press(key)
            tab.wait_for_function(
                "before => document.activeElement.dataset.drawn !== before", arg=before, polling="raf", timeout=10_000
            )
            zoom_ms.append(1000 * (time.perf_counter() - began_s))
        draw_ms = tab.eval_on_selector_all(".plot[data-draw-ms]", "all => all.map(plot => Number(plot.dataset.drawMs))")
    return {
        "zoom_median_ms": float(np.median(zoom_ms)),
        "zoom_largest_ms": max(zoom_ms),
        "draw_largest_ms": max(draw_ms),
    }


def _page_with_curves(opened: Any, address: str) -> Any:
    tab = opened.new_page(viewport={"width": 1280, "height": 900})
    tab.set_default_timeout(BROWSER_WAIT_MS)
    tab.goto(address)
    tab.wait_for_selector(".plot", state="attached")
    tab.evaluate("document.querySelector('.plot').parentElement.scrollIntoView()")
    tab.wait_for_selector(CURVE)
    tab.wait_for_timeout(500)
    return tab


def live_figures(folder: Path, seconds: float) -> dict[str, float]:
    """Return the share of a core that open pages of different runs cost the server, and the heap of one of them."""
    home, port = Home.at(folder), free_port()
    runs = [_assay_run(home, f"run-{number:02d}", 1_000_000, is_running=True) for number in range(LIVE_PAGES)]
    with _logging(runs, 1.0), browser() as opened, served(_assay_serve(folder, port), port) as process_id:
        tabs = [_page_with_curves(opened, f"http://127.0.0.1:{port}/runs/{run.run_id}") for run in runs]
        tabs[0].wait_for_timeout(5_000)
        before_s, began_s = _cpu_s(process_id), time.perf_counter()
        tabs[0].wait_for_timeout(1_000 * seconds)
        share = (_cpu_s(process_id) - before_s) / (time.perf_counter() - began_s)
        tabs[0].context.new_cdp_session(tabs[0]).send("HeapProfiler.collectGarbage")
        heap = tabs[0].evaluate(HEAP_BYTES)
    return {"server_share": share, "heap_megabytes": heap / 1e6}


@contextmanager
def _logging(runs: list[Run], every_s: float) -> Iterator[None]:
    """Log a step of each run in each interval, after the first thousand steps."""
    writers, is_over = list(map(_writer, runs)), threading.Event()

    def log(step: int) -> None:
        for writer in writers:
            writer.log(step, dict.fromkeys(METRICS, 1.0 / (1 + step)))

    def go_on() -> None:
        step = 1_000
        while not is_over.wait(every_s):
            log(step)
            step += 1

    for step in range(1_000):
        log(step)
    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def training_figures(folder: Path, seconds: float, rounds: int) -> dict[str, float | Median]:
    """Return how much more CPU time and how many more seconds a step takes while an open page shows the run than while
    it shows another run that logs as often: medians over rounds, each with a block of both."""
    home, port = Home.at(folder), free_port()
    trained, other = (_assay_run(home, name, 1_000_000, is_running=True) for name in ("trained", "other"))
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        num_steps, _, step_s = process.submit(compute_steps, trained.run_dir, 0, 2.0).result()

        def compute(shown: Run, _: int) -> tuple[float, float]:
            nonlocal num_steps
            tab = _page_with_curves(opened, f"http://127.0.0.1:{port}/runs/{shown.run_id}")
            computing = process.submit(compute_steps, trained.run_dir, num_steps, seconds)
            while not computing.done():
                tab.wait_for_timeout(200)  # the browser's events are read meanwhile
            tab.close()
            num_new, cpu_s, took_s = computing.result()
            num_steps += num_new
            return cpu_s, took_s

        with _logging([other], step_s), browser() as opened, served(_assay_serve(folder, port), port):
            found = in_turn({run.run_id: partial(compute, run) for run in (other, trained)}, rounds)
    more = np.divide(found["trained"], found["other"]) - 1
    return {
        "cpu_more": Median.of(more[:, 0].tolist()),
        "seconds_more": Median.of(more[:, 1].tolist()),
        "step_ms": 1000 * step_s,
    }


def compute_steps(run_dir: str, num_before: int, seconds: float) -> tuple[int, float, float]:
    """Compute and log steps for some time; return their number, the CPU time of one, and the median of the seconds."""
    writer = SegmentWriter(segment_path(Path(run_dir), 1, 0), run_id="trained", attempt=1, rank=0)
    weights = np.random.default_rng(0).standard_normal((256, 256)) / 16
    took_s = list[float]()
    cpu_s, ends_s = time.process_time(), time.perf_counter() + seconds
    while time.perf_counter() < ends_s:
        began_s = time.perf_counter()
        writer.phase("compute")
        for _ in range(20):
            weights = np.tanh(weights @ weights)
        writer.log(num_before + len(took_s), dict.fromkeys(METRICS, float(weights[0, 0])))
        took_s.append(time.perf_counter() - began_s)
    writer.close()
    return len(took_s), (time.process_time() - cpu_s) / len(took_s), float(np.median(took_s))


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--only", choices=("peers", "pages", "zoom", "live", "training"))
    parser.add_argument("--points", type=int, default=1_000_000, help="of the curve that peers draw, too")
    parser.add_argument("--runs", type=int, default=100, help="that are compared")
    parser.add_argument("--home", type=Path, help="time the pages of this home only")
    parser.add_argument("--run", default="", help="of the home; by default its last one")
    parser.add_argument("--live", type=float, default=20.0, help="seconds for which pages are live")
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    describe_machine()
    num_points, num_runs = (2_000, 3) if options.tiny else (options.points, options.runs)
    seconds, rounds, live_s = (0.5, 1, 2.0) if options.tiny else (1.0, 40, options.live)
    parts: dict[str, Callable[[Path], Any]] = {
        "peers": lambda _: peers(num_points, num_runs),
        "pages": lambda folder: _pages_of_generated_home(options.home or folder, options),
        "zoom": lambda folder: zoom_figures(folder, 10 * num_points),
        "live": lambda folder: live_figures(folder, live_s),
        "training": lambda folder: training_figures(folder, seconds, rounds),
    }
    only = "pages" if options.home else options.only
    result: dict[str, Any] = {}
    for name, part in parts.items():
        if only in (None, name):
            with tempfile.TemporaryDirectory() as folder:
                result[name] = part(Path(folder))
            _print_part(name, result[name])
    compared = {**result.get("peers", {}).get("ratios", {})}
    for name in ("zoom", "live", "training"):
        compared |= {f"{name}: {key}": value for key, value in result.get(name, {}).items()}
    compared |= {f"pages: {key}": value for key, value in result.get("pages", {}).get("largest", {}).items()}
    print_result(compared, TARGETS)
    print(json.dumps(result))


def _pages_of_generated_home(home: Path, options: Any) -> dict[str, dict[str, float]]:
    if options.home is None:
        sizes = ["20", "400_000"] if options.tiny else ["200", "4_000_000"]
        make = [sys.executable, str(CHECKOUT / "benchmarks" / "dashboard_home.py"), str(home)]
        subprocess.run([*make, "--runs", sizes[0], "--points", sizes[1], "--checkpoints", "100"], check=True)
    names = sorted(path.parent.name for path in home.glob("*/run.json"))
    return page_figures(home, options.run or [name for name in names if re.fullmatch(r"grpo-\d+-s\d+", name)][-1])


def _print_part(name: str, figures: dict[str, Any]) -> None:
    rows = figures if any(isinstance(value, dict) for value in figures.values()) else {name: figures}
    for row, found in rows.items():
        print(f"{row:<30}" + "  ".join(f"{key} {value:,.4g}" for key, value in found.items()), flush=True)


if __name__ == "__main__":
    main()
