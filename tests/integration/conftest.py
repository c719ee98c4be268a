"""A tiny real dataset, and runs of a tiny model on it with real processes."""

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from assay.base.clock import SystemClock
from assay.base.config import LoadedConfig
from assay.data.dataset.build import build_dataset
from assay.data.dataset.fields import BuildConfig
from assay.data.dataset.tokens import train_tokenizer
from assay.elastic.supervisor import RestartPolicy, RunObserver, Supervisor
from assay.records.run import Attempt, Run
from assay.store.commit_log import CommitLog
from assay.store.home import Home
from assay.store.objects import open_store
from assay.workflows.run import create_run
from full_disk import Disk
from sample_project import SampleProjects, session_folder
from session_service import Nursery, SessionService

NUM_ROWS = 700
WORDS = ["alpha", "beta", "gamma", "delta", "return", "yield", "import", "class", "lambda", "pass"]


@pytest.fixture(scope="session")
def tiny_dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """700 rows of random words in 4 shards; label: does 'return' occur more often than 'yield'?"""
    folder = tmp_path_factory.mktemp("tiny")
    rng = random.Random(0)
    lines = []
    for row in range(NUM_ROWS):
        words = rng.choices(WORDS, k=rng.randrange(3, 40))
        label = int(words.count("return") > words.count("yield"))
        language = rng.choice(["en", "de", None])
        key = f"conversation-{row // 5}"
        lines.append({"text": " ".join(words), "label": label, "language": language, "key": key, "turns": row % 7})
    (folder / "rows.jsonl").write_text("\n".join(json.dumps(line) for line in lines))
    train_tokenizer([line["text"] for line in lines], vocab_size=300).save(str(folder / "tokenizer.json"))
    config = BuildConfig(
        tokenizer=str(folder / "tokenizer.json"),
        metadata_fields=("language", "turns"),
        key_field="key",
        rows_per_shard=200,
        rows_per_group=30,
    )
    build_dataset([folder / "rows.jsonl"], folder / "dataset", config)
    return folder / "dataset"


def tiny_recipe(dataset: Path, **overrides: object) -> LoadedConfig:
    """A model of some ten thousand weights, dropout on; 20 steps an epoch."""
    tree: dict[str, object] = {
        "name": "tiny",
        "data": {"dataset": str(dataset), "split": {"type": "hash", "validation_fraction": 0.1}},
        "loader": {"lanes": 8, "global_batch_size": 32, "window_rows": 16, "threads": 1},
        "method": {
            "type": "classify",
            "encoder": {
                "type": "new", "vocab_size": 300, "hidden_size": 16, "num_layers": 1, "num_heads": 2,
                "intermediate_size": 32, "max_tokens": 128, "dropout": 0.1, "attention_dropout": 0.1,
            },
            "categorical_columns": ["language"],
            "numeric_columns": ["turns"],
        },
        "trainer": {"commit_every": 5, "optimizer": {"learning_rate": 1e-3}},
    }  # fmt: skip
    for dotted, value in overrides.items():
        branch = tree
        *parents, last = dotted.split("__")
        for parent in parents:
            branch = branch.setdefault(parent, {})  # type: ignore[assignment]
        branch[last] = value
    return LoadedConfig(tree, {})


@pytest.fixture
def recipe(tiny_recipe_tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A recipe file; runs go to a fresh ASSAY_HOME."""
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(tiny_recipe_tree))
    return path


class KillAt:
    """Kills a rank with a signal once some commits are in the log; one kill per attempt, as listed."""

    def __init__(self, log: CommitLog, kills: Sequence[tuple[int, int]], number: int = 9) -> None:
        """`kills`: for each attempt in turn, (commits that must be there, rank to kill)."""
        self._log = log
        self._kills = list(kills)
        self._number = number
        self._pids: Sequence[int] = ()

    def attempt_began(self, attempt: Attempt, pids: Sequence[int]) -> None:
        self._pids = pids
        self._armed = bool(self._kills)

    def tick(self, attempt: Attempt) -> None:
        if self._armed and len(self._log.commits()) >= self._kills[0][0]:
            _, rank = self._kills.pop(0)
            os.kill(self._pids[rank], self._number)
            self._armed = False

    def attempt_ended(self, attempt: Attempt) -> None:
        pass


RunIt = Callable[..., tuple[Run, CommitLog, list[Attempt]]]


@pytest.fixture(scope="session")
def tiny_tree(tiny_dataset: Path) -> dict[str, Any]:
    """Likewise, for fixtures that are shared: not to be changed."""
    return tiny_recipe(tiny_dataset).values


@pytest.fixture
def tiny_recipe_tree(tiny_dataset: Path) -> dict[str, Any]:
    """The tiny recipe as a file would hold it."""
    return tiny_recipe(tiny_dataset).values


@pytest.fixture
def new_tiny_run(tiny_dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Run]:
    """Make a run of the tiny recipe: `new_tiny_run(store_url=..., **recipe overrides)`."""
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))

    def make(store_url: str | None = None, **overrides: object) -> Run:
        recipe = tiny_recipe(tiny_dataset, **overrides)
        return create_run(
            Home.from_environment(), recipe, run_id=f"run-{random.getrandbits(48):x}", store_url=store_url
        )

    return make


@pytest.fixture(scope="session")
def undisturbed(tiny_dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The weights digest with which the tiny recipe ends when nothing happens to it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ASSAY_HOME", str(tmp_path_factory.mktemp("undisturbed")))
        run = create_run(Home.from_environment(), tiny_recipe(tiny_dataset), run_id="undisturbed")
        log = CommitLog(open_store(run.store_url))
        Supervisor(run, log, policy=RestartPolicy(), observers=[], clock=SystemClock()).run(1)
    finished = log.finished()
    assert finished is not None
    return finished.weights_digest


class _Attempts:
    def __init__(self) -> None:
        self.ended: list[Attempt] = []

    def attempt_began(self, attempt: Attempt, pids: Sequence[int]) -> None:
        pass

    def tick(self, attempt: Attempt) -> None:
        pass

    def attempt_ended(self, attempt: Attempt) -> None:
        self.ended.append(attempt)


@pytest.fixture
def run_it(run_here: RunIt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunIt:
    """Train the tiny recipe: `run_it(world_sizes=(1, 2), kills=[(2, 0)], **recipe overrides)`."""
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))
    return run_here


@pytest.fixture(scope="session")
def run_here(tiny_dataset: Path) -> RunIt:
    """`run_it` for fixtures that are shared: they set ASSAY_HOME themselves."""

    def train(
        world_sizes: Sequence[int] = (1,),
        kills: Sequence[tuple[int, int]] = (),
        observers: Sequence[RunObserver] = (),
        **overrides: object,
    ) -> tuple[Run, CommitLog, list[Attempt]]:
        run = create_run(
            Home.from_environment(),
            tiny_recipe(tiny_dataset, **overrides),
            run_id=f"run-{random.getrandbits(48):x}",
        )
        log = CommitLog(open_store(run.store_url))
        killer, attempts = KillAt(log, kills), _Attempts()
        supervisor = Supervisor(
            run,
            CommitLog(open_store(run.store_url)),
            policy=RestartPolicy(world_sizes=tuple(world_sizes)),
            observers=[killer, attempts, *observers],
            clock=SystemClock(),
        )
        supervisor.run(world_sizes[-1])
        return run, log, attempts.ended

    return train


PLANTS = Path(__file__).parent / "plants"


class PlantedAssay:
    """The real command in processes of its own, with a fault planted below torch (see `plants`)."""

    def __init__(self, folder: Path, tree: dict[str, Any]) -> None:
        self.home = folder / "home"
        self._recipe = folder / "recipe.yaml"
        self._tree = tree
        self._environment = {**os.environ, "ASSAY_HOME": str(self.home)}

    def plant(self, name: str, **environment: str) -> None:
        """From now on every process has this fault."""
        paths = [str(PLANTS / name), *filter(None, [os.environ.get("PYTHONPATH")])]
        self._environment |= {"PYTHONPATH": os.pathsep.join(paths), **environment}

    def remove_faults(self) -> None:
        """From now on no process has a fault."""
        self._environment.pop("PYTHONPATH")
        self._environment |= {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}

    def train(self, run_id: str, workers: int, *options: str, **trainer: object) -> dict[str, Any]:
        """What `assay runs show --json` says of the run."""
        return json.loads(self.run(*self.train_command(run_id, workers, **trainer), *options, "--json").stdout)

    def train_command(self, run_id: str, workers: int, **trainer: object) -> list[str]:
        """Writes the recipe; the command that trains it."""
        tree = {**self._tree, "trainer": {**self._tree["trainer"], **trainer}}
        self._recipe.write_text(yaml.safe_dump(tree))
        return ["train", str(self._recipe), "--run-id", run_id, "--workers", str(workers)]

    def replay(self, run_id: str, step: int, *options: str, fails: bool = False) -> dict[str, Any]:
        """The report as JSON."""
        command = ["runs", "replay", run_id, "--step", str(step), *options, "--json"]
        return json.loads(self.run(*command, fails=fails).stdout)

    def run(self, *arguments: str, fails: bool = False, timeout_s: float = 200.0) -> subprocess.CompletedProcess[str]:
        """Exit code 0, or 1 where it `fails`."""
        command = [sys.executable, "-c", "from assay.cli.main import main; main()", *arguments]
        done = subprocess.run(command, env=self._environment, capture_output=True, text=True, timeout=timeout_s)
        assert done.returncode == int(fails), done.stderr
        return done


@pytest.fixture
def disk(tmp_path: Path, requires: Callable[..., None]) -> Iterator[Disk]:
    """A file system of 64 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    requires("mounts", shutil.which("mount") is not None, "there is no 'mount' here")
    created = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", folder], capture_output=True, text=True
    )
    requires("mounts", created.returncode == 0, created.stderr)
    try:
        yield Disk(folder)
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.fixture(scope="session")
def nursery(requires: Callable[..., None]) -> Iterator[Nursery]:
    """Forks commands for tests of sessions."""
    requires("sdks", find_spec("tinker") is not None, "the tinker SDK is not installed")
    nursery = Nursery()
    yield nursery
    nursery.close()


@pytest.fixture
def session_service(nursery: Nursery, tmp_path: Path) -> Iterator[SessionService]:
    """A server of sessions and a worker."""
    service = SessionService(nursery, tmp_path)
    yield service
    service.stop()


@pytest.fixture
def planted_assay(tiny_dataset: Path, tmp_path: Path) -> PlantedAssay:
    """The command without a fault, until one is planted."""
    return PlantedAssay(tmp_path, tiny_recipe(tiny_dataset).values)


@pytest.fixture(scope="module")
def shared_planted_assay(tiny_dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> PlantedAssay:
    """The same for the tests of one file, that look at one faulty run in several ways."""
    return PlantedAssay(tmp_path_factory.mktemp("planted"), tiny_recipe(tiny_dataset).values)


@pytest.fixture(scope="session")
def sample_projects(tmp_path_factory: pytest.TempPathFactory) -> SampleProjects:
    """A project with runs, to be copied."""
    return SampleProjects(session_folder(tmp_path_factory))
