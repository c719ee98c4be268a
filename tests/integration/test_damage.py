"""Each file of a run, its store and its dataset, damaged in every way: never other rows or weights, or a PASS.

What finds which damage stands in `damage_table.md`, as a table that a test holds to what happens here; run it
with ASSAY_WRITE_TABLE=1 to write it anew. A resume is tried as far as it goes without ranks: which recipe, rows
and weights it would train from. `test_commits` has real ones.
"""

import os
import re
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from assay.base.clock import SystemClock
from assay.base.config import LoadedConfig
from assay.base.errors import AssayError
from assay.data.dataset.dataset import Dataset
from assay.data.dataset.split import split_view
from assay.elastic.capsules import save_capsule
from assay.elastic.supervisor import RestartPolicy
from assay.evals.config import read_suite
from assay.launchers.local import launched_here
from assay.records.commit import Commit
from assay.records.run import Run
from assay.store import commit_log
from assay.store.commit_log import CommitLog
from assay.store.home import Home
from assay.store.missing_log import reject_missing_log
from assay.store.objects import open_store
from assay.store.run_notes import tag
from assay.training.audit import audit_run
from assay.training.recipe import EvaluationConfig, recipe_of
from assay.workflows.bookkeeping import writer_of
from assay.workflows.evaluation.queue import Queue, work
from assay.workflows.run import create_run, load_run
from assay.workflows.train import train_run

PAGE = Path(__file__).with_name("damage_table.md")
KINDS = {
    r"run/run\.json": "`run.json`",
    r"run/attempts/.*": "`attempts/*.json`",
    r"run/.*": "accounts: launches, metrics, incidents, predictions, results, notes",
    r"store/log/.*": "`log/*.json`",
    r"store/log-summaries/.*": "`log-summaries/*.json`",
    r"store/(benchmarks|capsules)/.*": "`benchmarks/**`, `capsules/**`",
    r"store/checkpoints/.*/receipts\.npz": "receipts",
    r"store/LAST/.*": "weights of the last commit",
    r"store/checkpoints/.*": "weights of an earlier commit",
    r"dataset/splits/.*": "`splits/*`, the kept split",
    r"dataset/tokenizer\.json": "`tokenizer.json` beside the manifest",
    r"dataset/shards/.*": "a shard",
    r"dataset/(manifest\.json|row_groups\.parquet|footers\.arrow)": "`manifest.json`, `row_groups`, `footers`",
}
NOTHING_RESTS_ON = {
    KINDS[name]
    for name in (
        r"run/.*",
        r"store/log-summaries/.*",
        r"store/(benchmarks|capsules)/.*",
        r"store/checkpoints/.*",
        r"dataset/splits/.*",
        r"dataset/tokenizer\.json",
    )
}
"""Of what the verdict says; the report says so, and splits are made anew."""
DAMAGES = ("flipped", "truncated", "emptied", "swapped", "deleted", "joined by a stray")


class Trained(NamedTuple):
    """A finished run with its store apart from its folder."""

    home: Home
    run_id: str
    folders: dict[str, Path]
    rows: bytes
    last: str

    def files(self) -> list[tuple[str, Path]]:
        """(place and path in it, file)."""
        return [
            (f"{location}/{path.relative_to(folder).as_posix()}", path)
            for location, folder in self.folders.items()
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        ]

    def kind_of(self, name: str) -> str:
        name = name.replace(self.last, "LAST")
        return next(kind for pattern, kind in KINDS.items() if re.fullmatch(pattern, name))


@pytest.fixture(scope="module")
def trained(
    tiny_dataset: Path, tiny_tree: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Trained]:
    folder = tmp_path_factory.mktemp("damage")
    dataset = shutil.copytree(tiny_dataset, folder / "dataset")
    recipe = {
        **tiny_tree,
        "data": {**tiny_tree["data"], "dataset": str(dataset)},
        "trainer": {**tiny_tree["trainer"], "max_steps": 15},
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ASSAY_HOME", str(folder / "home"))
        home = Home.from_environment()
        run = create_run(home, LoadedConfig(recipe, {}), run_id="damaged", store_url=str(folder / "store"))
        with writer_of(home, run) as writer:
            result = train_run(home, run, writer, world_size=1, policy=RestartPolicy())
        assert result.audit is not None and result.audit.verdict == "pass"
        log = CommitLog(open_store(run.store_url))
        leave_more(home, run, log, folder / "suite.yaml", patch)
        locations = {"run": Path(run.run_dir), "store": folder / "store", "dataset": dataset}
        yield Trained(home, run.run_id, locations, rows_of(home, "damaged"), log.commits()[-1].folder)


def leave_more(home: Home, run: Run, log: CommitLog, suite: Path, patch: pytest.MonkeyPatch) -> None:
    """What longer runs leave, and people: a log's summary, scores of a suite, a capsule, a launch, a tag."""
    with patch.context() as soon:
        soon.setattr(commit_log, "SUMMARY_EVERY", 1)
        log.summary()
        log._summarize()
    suite.write_text("name: s\nbenchmarks: [{type: classification, name: validation, chunk_items: 32}]\n")
    expected = EvaluationConfig(suite=str(suite), every_steps=10**12)
    queue = Queue(run, expected, read_suite(suite), "0" * 64, log.store, log)
    with writer_of(home, run) as writer:
        work(queue, writer, clock=SystemClock(), follow=False)
    save_capsule(run, log, step=6, reason="a test")
    launched_here(run, world_size=1)
    tag(run, add=["kept"], remove=())


def rows_of(home: Home, run_id: str) -> bytes:
    """Which rows are trained on, and their bytes; each error is one that a rank would meet."""
    run = load_run(home, run_id)
    recipe = recipe_of(run)
    view = split_view(Dataset.open(Path(recipe.data.dataset)), recipe.data.split, "train")
    groups = np.flatnonzero(view.num_rows).tolist()
    tables = [view.read(group, ["input_ids", "label"]).to_pydict() for group in groups]
    return repr((recipe, [view.row_ids(group).tolist() for group in groups], tables)).encode()


def resumed(trained: Trained, commits: list[Commit]) -> str:
    """What `--resume` comes to, up to where ranks would start."""
    try:
        rows = rows_of(trained.home, trained.run_id)
        run = trained.home.run(trained.run_id)
        log = CommitLog(open_store(run.store_url))
        reject_missing_log(run, log)
        log.begin_attempt(world_size=1, now_s=0.0)
        commit = log.last_intact_commit()
    except AssayError:
        return "refused"
    assert rows == trained.rows, "other rows"
    assert commit is None or commit in commits, "other weights"
    return "goes on" if commit == commits[-1] else "the commit before"


def audited(trained: Trained) -> str:
    """What the audit comes to."""
    try:
        run = trained.home.run(trained.run_id)
        report = audit_run(run, CommitLog(open_store(run.store_url)))
    except AssayError:
        return "refused"
    if report.verdict == "pass" and report.strays:
        return "named"
    return report.verdict


def damage(how: str, path: Path, neighbour: Path | None) -> Iterator[None]:
    """Each way to damage a file so, one after the other."""
    whole = path.read_bytes()
    match how:
        case "flipped":
            for location in sorted({0, len(whole) // 3, len(whole) // 2, len(whole) - 1}):
                path.write_bytes(whole[:location] + bytes([whole[location] ^ 4]) + whole[location + 1 :])
                yield
        case "truncated":
            for size in sorted({len(whole) // 2, len(whole) - 1}):
                path.write_bytes(whole[:size])
                yield
        case "emptied":
            path.write_bytes(b"")
            yield
        case "swapped" if neighbour is not None and neighbour.read_bytes() != whole:
            path.write_bytes(neighbour.read_bytes())
            neighbour.write_bytes(whole)
            yield
        case "deleted":
            path.unlink()
            yield
        case "joined by a stray":
            path.with_name(f"stray-{path.name}").write_bytes(whole)
            yield


def outcomes(trained: Trained, chosen: Callable[[str], bool]) -> dict[tuple[str, str], set[tuple[str, str]]]:
    """(kind of file, damage) -> what audit and resume came to; all is as it was afterwards."""
    found: dict[tuple[str, str], set[tuple[str, str]]] = defaultdict(set)
    files = trained.files()
    before = {path: path.read_bytes() for _, path in files if path.stat().st_size}
    commits = CommitLog(open_store(trained.home.run(trained.run_id).store_url)).commits()
    for name, path in files:
        if path not in before or not chosen(name):
            continue
        background = [other for other in before if other.parent == path.parent and other != path]
        later = [other for other in background if other > path]
        for how in DAMAGES:
            for _ in damage(how, path, (later or background or [None])[0]):
                kind, audit = trained.kind_of(name), audited(trained)
                resume = resumed(trained, commits)
                rests_on_it = kind not in NOTHING_RESTS_ON and how != "joined by a stray"
                assert audit in ("fail", "refused", "incomplete") or not rests_on_it, f"{name} {how}: {audit}"
                found[kind, how].add((audit, resume))
                restore(trained, before)
    return found


def restore(trained: Trained, before: dict[Path, bytes]) -> None:
    for _, path in trained.files():
        if path not in before:
            path.unlink()
    for path, data in before.items():
        if not path.is_file() or path.read_bytes() != data:
            path.write_bytes(data)


@pytest.mark.slow
def test_damage_to_what_decides_is_found(trained: Trained) -> None:
    """One file of each kind; the table, with all of them, is a slow test."""
    expected = {"log/00000001", "LAST/__0", "run.json", "splits/", "manifest.json"}

    def chosen(name: str) -> bool:
        return any(part in name.replace(trained.last, "LAST") for part in expected)

    assert len({kind for kind, _ in outcomes(trained, chosen)}) == 5


@pytest.mark.soak  # one of each kind is in make test
@pytest.mark.timeout(900)
def test_who_finds_which_damage_is_what_the_page_says(trained: Trained) -> None:
    found = outcomes(trained, lambda name: True)
    lines = [f"| | {' | '.join(DAMAGES)} |", f"|{'---|' * (len(DAMAGES) + 1)}"]
    for kind in dict.fromkeys(KINDS.values()):
        cells = [cell(found.get((kind, how), set())) for how in DAMAGES]
        if any(cells):
            lines.append(f"| {kind} | {' | '.join(cells)} |")
    table = "\n".join(lines)
    page = PAGE.read_text()
    marked = re.compile(r"(<!-- damage -->\n).*?(<!-- end -->)", re.DOTALL)
    if os.environ.get("ASSAY_WRITE_TABLE"):
        PAGE.write_text(marked.sub(lambda match: f"{match[1]}{table}\n{match[2]}", page))
    assert table in PAGE.read_text(), table


def cell(found: set[tuple[str, str]]) -> str:
    audits, resumes = (", ".join(sorted(set(entry))) for entry in zip(*found, strict=True)) if found else ("", "")
    return f"{audits}; {resumes}" if found else ""
