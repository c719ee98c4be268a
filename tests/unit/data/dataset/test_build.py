import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from assay.base.errors import AssayError, ConfigError, DataError
from assay.data.dataset import build
from assay.data.dataset.build import _check_usable, _column_plan, _write_shard, build_dataset
from assay.data.dataset.dataset import Dataset
from assay.data.dataset.fields import BuildConfig, check_span
from assay.data.dataset.index import index_dataset
from assay.data.dataset.raw.find import find_spans
from assay.data.dataset.tokens import train_tokenizer
from assay.data.pools.processes import one_by_one

LINES = [
    {
        "text": f"row number {n} said hello",
        "label": n % 2,
        "language": None if n % 3 else "en",
        "when": "2026-01-02",
        "score": n if n % 2 else 0.5,
    }
    for n in range(25)
]


@pytest.fixture
def config(tmp_path: Path) -> BuildConfig:
    train_tokenizer([line["text"] for line in LINES], vocab_size=300).save(str(tmp_path / "tokenizer.json"))
    return BuildConfig(
        tokenizer=str(tmp_path / "tokenizer.json"),
        metadata_fields=("language", "score"),
        time_field="when",
        rows_per_shard=10,
        rows_per_group=4,
    )


def write(path: Path, lines: list[bytes]) -> Path:
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path


def encoded() -> list[bytes]:
    return [json.dumps(line).encode() for line in LINES]


def test_rows_come_out_tokenised_in_their_order_with_what_was_missing_missing(tmp_path: Path, config) -> None:
    manifest = build_dataset([write(tmp_path / "rows.jsonl", encoded())], tmp_path / "out", config, workers=1)
    dataset = Dataset.open(tmp_path / "out")
    tables = [dataset.read_row_group(group, ["input_ids", "label", "language"]) for group in range(len(dataset.groups))]
    rows = [row for table in tables for row in table.to_pylist()]
    tokenizer = Tokenizer.from_file(config.tokenizer)
    assert [tokenizer.decode(row["input_ids"]) for row in rows] == [line["text"] for line in LINES]
    assert [row["language"] for row in rows] == [line["language"] for line in LINES]
    assert len(manifest.shards) == 3


def test_a_build_goes_on_where_it_stopped_and_ends_with_the_same_dataset(tmp_path: Path, config) -> None:
    source = write(tmp_path / "rows.jsonl", encoded())
    whole = build_dataset([source], tmp_path / "out", config, workers=1)
    shards = sorted((tmp_path / "out" / "shards").glob("*.parquet"))
    retained = shards[0].stat().st_mtime_ns
    shards[1].unlink()
    shards[2].with_suffix(".unfinished").write_bytes(b"half")
    again = build_dataset([source], tmp_path / "out", config, workers=1)
    assert again.fingerprint == whole.fingerprint
    assert shards[0].stat().st_mtime_ns == retained


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"text": "caf\xe9", "label": 0}', r"line 12: not UTF-8 \(byte 13 of the line is 0xe9\)"),
        (b'{"text": "half', "line 12, column 10: not JSON: unterminated string"),
        (b"[1]", "line 12: expected a JSON object, found a list"),
        (b'{"text": 3, "label": 0}', "line 12: field 'text' is a number; expected text"),
        (b'{"text": [{}], "label": 0}', "line 12: field 'text' is a list; .* with --format chat"),
        (b'{"text": "fine", "label": [2]}', "line 12: field 'label' is a list; a label is text, a number"),
        (b'{"text": "fine", "label": Infinity}', "line 12: field 'label' is inf; .* must be finite"),
        (b'{"text": "fine", "label": 1e999}', "line 12: field 'label' is inf"),
        (b'{"text": "fine", "label": 36893488147419103232}', "line 12: .* within 64 bits"),
        (b'{"text": "fine", "label": "\\ud83d"}', "line 12: field 'label' holds .* a lone surrogate"),
        (b'{"text": "fine", "label": 1, "when": "noon"}', "field 'when'"),
        (b'{"text": "fine", "label": 1, "language": 3}', "field 'language' mixes types"),
        (b'{"text": "\\ud83d fine", "label": 1}', r"line 12: field 'text' holds '\\ud83d', a lone surrogate"),
        (b'{"text": "fine", "label": 1, "language": "\\udc00"}', r"field 'language' holds '\\udc00'"),
        (b'{"text": "fine", "label": 1, "language": 9223372036854775808}', "field 'language' is .* 64 bits"),
        (
            b'{"text": "fine", "label": 1, "deep": ' + b"[" * 2000 + b"]" * 2000 + b"}",
            "line 12: .* 100 deep",
        ),
    ],
)
def test_a_bad_line_is_named_by_its_number(tmp_path: Path, config, line: bytes, message: str) -> None:
    lines = encoded()
    lines[11] = line
    with pytest.raises(DataError, match=message):
        build_dataset([write(tmp_path / "rows.jsonl", lines)], tmp_path / "out", config, workers=1)
    assert not (tmp_path / "out" / "manifest.json").exists()


unusual_texts = st.text(max_size=4) | st.sampled_from(["\ud800", "a\udfff", "", "\x00", "\u2028", "x" * 50])
times = st.datetimes().map(str) | st.sampled_from(["0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-12:00"])
anything = (
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | unusual_texts
    | st.lists(st.integers(), max_size=2) | st.dictionaries(unusual_texts, st.integers(), max_size=1)
)  # fmt: skip
labels = st.sampled_from([0, 1, "0", True])
optional = {"language": anything, "score": st.floats() | st.integers(-(2**63), 2**63 - 1), "when": times}
unusual_rows = st.fixed_dictionaries({"text": anything, "label": labels}, optional=optional)
texts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=4)
good_rows = st.fixed_dictionaries({"text": texts, "label": labels}, optional={**optional, "language": texts})


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(good_rows, min_size=1, max_size=6) | st.lists(unusual_rows, min_size=1, max_size=3))
def test_rows_that_pass_the_check_can_be_written_and_the_others_are_named(tmp_path, config, lines) -> None:
    folder = Path(tempfile.mkdtemp(dir=tmp_path))
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, lines)))
    try:
        (span,) = find_spans([folder / "rows.jsonl"], config.rows_per_shard)
        facts, _ = check_span(span, config)
        _check_usable([facts], config, "rows.jsonl")
        plan = _column_plan([facts], config)
    except DataError as error:
        assert "rows.jsonl: " in str(error) and "line " in str(error)
        return
    retained = [line for line in lines if str(line["text"] or "").strip()]
    if retained:
        _write_shard(span, folder, "a.parquet", config, plan)
        assert index_dataset(str(folder), folder / "out").num_rows == len(retained)


def all_rows(folder: Path, columns: list[str]) -> list[dict]:
    dataset = Dataset.open(folder)
    groups = range(len(dataset.groups))
    return [row for group in groups for row in dataset.read_row_group(group, columns).to_pylist()]


def test_bad_input_is_found_before_the_first_shard_is_written(tmp_path: Path, config) -> None:
    source = write(tmp_path / "rows.jsonl", [*encoded(), b'{"text": "fine", "label": {}}'])
    with pytest.raises(DataError, match="line 26"):
        build_dataset([source], tmp_path / "out", config, workers=1)
    assert not list(tmp_path.glob("out/**/*.parquet"))


def test_a_field_that_is_missing_in_a_whole_shard_has_the_type_it_has_elsewhere(tmp_path: Path, config) -> None:
    lines = [
        {"text": "x", "label": 0, "turns": None if n < 10 else n, "score": n if n < 10 else 0.5} for n in range(20)
    ]
    source = write(tmp_path / "rows.jsonl", [json.dumps(line).encode() for line in lines])
    config = config.model_copy(update={"metadata_fields": ("turns", "score", "never"), "time_field": None})
    lines[3]["never"] = None
    source.write_text("\n".join(map(json.dumps, lines)))
    manifest = build_dataset([source], tmp_path / "out", config, workers=1)
    assert [manifest.columns[name] for name in ("turns", "score", "never")] == ["int64", "double", "string"]
    expected = [{"turns": line["turns"], "score": float(line["score"]), "never": None} for line in lines]
    assert all_rows(tmp_path / "out", ["turns", "score", "never"]) == expected


def test_a_missing_key_stays_missing(tmp_path: Path, config) -> None:
    source = write(tmp_path / "rows.jsonl", [b'{"text": "x", "label": 0, "key": 7}', b'{"text": "y", "label": 1}'])
    build_dataset(
        [source],
        tmp_path / "out",
        config.model_copy(update={"key_field": "key", "metadata_fields": (), "time_field": None}),
        workers=1,
    )
    assert all_rows(tmp_path / "out", ["shard_id"]) == [{"shard_id": "7"}, {"shard_id": None}]


def test_cutting_a_long_row_keeps_the_tokens_that_the_tokenizer_puts_around_it(tmp_path: Path, config) -> None:
    tokenizer = Tokenizer.from_file(config.tokenizer)
    tokenizer.add_special_tokens(["[SEP]"])
    start, end = tokenizer.token_to_id("[CLS]"), tokenizer.token_to_id("[SEP]")
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", start), ("[SEP]", end)]
    )
    tokenizer.save(config.tokenizer)
    source = write(tmp_path / "rows.jsonl", encoded())
    build_dataset([source], tmp_path / "out", config.model_copy(update={"max_tokens": 5}), workers=1)
    for row in all_rows(tmp_path / "out", ["input_ids"]):
        assert (len(row["input_ids"]), row["input_ids"][0], row["input_ids"][-1]) == (5, start, end)
    with pytest.raises(ConfigError, match="max_tokens=1"):
        build_dataset([source], tmp_path / "out", config.model_copy(update={"max_tokens": 1}), workers=1)


def test_text_files_become_rows_by_line_or_by_file(tmp_path: Path, config) -> None:
    plain = config.model_copy(update={"label_field": None, "metadata_fields": (), "time_field": None})
    source = write(tmp_path / "notes.txt", [b"one", b"", b"two\r", b"  three"])
    build_dataset([source], tmp_path / "lines", plain, workers=1)
    tokenizer = Tokenizer.from_file(config.tokenizer)

    def texts(folder: Path) -> list[str]:
        return [tokenizer.decode(row["input_ids"]) for row in all_rows(folder, ["input_ids"])]

    assert texts(tmp_path / "lines") == ["one", "two", "  three"]
    for path, text in {"0/b": "second\nline", "1/a": "first"}.items():
        (tmp_path / "texts" / path).parent.mkdir(parents=True)
        (tmp_path / "texts" / f"{path}.txt").write_text(text)
    labelled = plain.model_copy(update={"label_field": "folder", "key_field": "path"})
    build_dataset([tmp_path / "texts"], tmp_path / "files", labelled, workers=1)
    assert texts(tmp_path / "files") == ["second\nline", "first"]
    assert all_rows(tmp_path / "files", ["label", "shard_id"]) == [
        {"label": 0, "shard_id": "0/b.txt"},
        {"label": 1, "shard_id": "1/a.txt"},
    ]
    (tmp_path / "texts" / "0" / "b.txt").write_bytes(b"caf\xe9")
    with pytest.raises(DataError, match=r"b.txt: not UTF-8 \(byte 3 of the file is 0xe9\)"):
        build_dataset([tmp_path / "texts"], tmp_path / "files", labelled, workers=1)


def test_shards_that_somebody_else_wrote_are_not_touched(tmp_path: Path, config) -> None:
    foreign = tmp_path / "out" / "shards" / "part-00000-theirs.snappy.parquet"
    foreign.parent.mkdir(parents=True)
    foreign.write_bytes(b"precious")
    source = write(tmp_path / "rows.jsonl", encoded())
    with pytest.raises(ConfigError, match=r"part-00000-theirs.snappy.parquet.*Choose another --out"):
        build_dataset([source], tmp_path / "out", config, workers=1)
    assert foreign.read_bytes() == b"precious"


def test_other_settings_or_other_input_make_the_shards_anew(tmp_path: Path, config) -> None:
    source = write(tmp_path / "rows.jsonl", encoded())
    first = build_dataset([source], tmp_path / "out", config, workers=1)
    shorter = config.model_copy(update={"max_tokens": 3})
    second = build_dataset([source], tmp_path / "out", shorter, workers=1)
    assert second.lengths.max == 3
    write(source, encoded()[:12])
    third = build_dataset([source], tmp_path / "out", shorter, workers=1)
    assert (first.num_rows, second.num_rows, third.num_rows) == (25, 25, 12)
    assert len(list((tmp_path / "out" / "shards").iterdir())) == 2


@pytest.mark.parametrize("changed", ["tokenizer", "rows"])
def test_who_minds_that_a_dataset_is_replaced_is_asked_before_anything_of_it_changes(
    changed: str, tmp_path: Path, config
) -> None:
    """A second build into the same folder took the rows that a run had learned: no audit, no export."""
    source, out = write(tmp_path / "rows.jsonl", encoded()), tmp_path / "out"
    build_dataset([source], out, config, workers=1)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}

    def refuse() -> None:
        raise ConfigError("a run learned these")

    build_dataset([source], out, config, workers=1, replacing=refuse)  # the same again replaces nothing
    (tmp_path / "spaced.json").write_bytes(Path(config.tokenizer).read_bytes() + b"\n")
    other = {"tokenizer": str(tmp_path / "spaced.json")} if changed == "tokenizer" else {"max_tokens": 3}
    with pytest.raises(ConfigError, match="a run learned these"):
        build_dataset([source], out, config.model_copy(update=other), workers=1, replacing=refuse)
    assert before == {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}


def test_a_source_that_grew_by_a_shard_replaces_the_dataset_too(tmp_path: Path, config) -> None:
    source, out = write(tmp_path / "rows.jsonl", encoded()[:20]), tmp_path / "out"
    build_dataset([source], out, config, workers=1)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    write(source, encoded())

    def refuse() -> None:
        raise ConfigError("a run learned these")

    with pytest.raises(ConfigError, match="a run learned these"):
        build_dataset([source], out, config, workers=1, replacing=refuse)
    assert before == {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}


def test_a_metadata_field_may_not_take_the_name_of_another_column(config) -> None:
    with pytest.raises(ValidationError, match="has a column 'label' of its own"):
        BuildConfig(tokenizer="x", metadata_fields=("label",))
    with pytest.raises(ValidationError, match="the label 'area' is among the metadata, so a model would read what"):
        BuildConfig(tokenizer="x", label_field="area", metadata_fields=("time", "area"))
    with pytest.raises(ValidationError, match="'time' is named twice"):
        BuildConfig(tokenizer="x", metadata_fields=("time", "area", "time"))
    with pytest.raises(ValidationError, match="'body' is both the text and the label"):
        BuildConfig(tokenizer="x", text_field="body", label_field="body")


@pytest.mark.parametrize("sources", [["none.jsonl"], ["empty.jsonl"], ["folder"]])
def test_a_source_without_rows_is_named(tmp_path: Path, config, sources: list[str]) -> None:
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "folder").mkdir()
    with pytest.raises(DataError, match=sources[0]):
        build_dataset([tmp_path / name for name in sources], tmp_path / "out", config, workers=1)


@pytest.mark.slow
def test_processes_beside_this_one_write_the_same_dataset(
    tmp_path: Path, config, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write(tmp_path / "rows.jsonl", encoded())
    config = config.model_copy(update={"rows_per_shard": 10})
    alone = build_dataset([source], tmp_path / "alone", config, name="rows")
    monkeypatch.setattr(build, "SMALL_BYTES", 0)
    shared = build_dataset([source], tmp_path / "shared", config, name="rows")
    assert len(alone.shards) > 1 and shared.fingerprint == alone.fingerprint and shared.build == alone.build


@pytest.mark.slow
def test_a_build_that_is_killed_leaves_no_process_and_goes_on(tmp_path: Path, config) -> None:
    lines = [{**LINES[n % 25], "text": f"{n} " * 80, "unread": "x" * 1_000} for n in range(4_000)]
    source = write(tmp_path / "rows.jsonl", [json.dumps(line).encode() for line in lines])
    config = config.model_copy(update={"rows_per_shard": 100})
    program = (
        "import sys; from pathlib import Path; from assay.data.dataset.build import build_dataset\n"
        "from assay.data.dataset.fields import BuildConfig\n"
        "config = BuildConfig.model_validate_json(sys.argv[3])\n"
        "build_dataset([Path(sys.argv[1])], Path(sys.argv[2]), config, workers=2)"
    )
    arguments = [str(source), str(tmp_path / "out"), config.model_dump_json()]
    build = subprocess.Popen([sys.executable, "-c", program, *arguments])
    while not list(tmp_path.glob("out/shards/part-*.parquet")):
        assert build.poll() is None
        time.sleep(0.01)
    workers = descendants(build.pid)
    build.kill()
    build.wait()
    finished = len(list(tmp_path.glob("out/shards/part-*.parquet")))
    assert finished < 40
    assert len(workers) >= 3
    deadline = time.monotonic() + 20
    while any(is_alive(pid) for pid in workers):
        assert time.monotonic() < deadline, "orphans"
        time.sleep(0.05)
    assert build_dataset([source], tmp_path / "out", config).num_rows == 4_000
    assert {path.suffix for path in tmp_path.glob("out/shards/*")} == {".parquet"}
    assert len(list(tmp_path.glob("out/shards/*"))) == 40


@pytest.mark.slow
def test_a_build_whose_processes_are_killed_does_their_parts_again(
    tmp_path: Path, config, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lines = [{**LINES[n % 25], "text": f"{n} " * 80} for n in range(2_000)]
    source = write(tmp_path / "rows.jsonl", [json.dumps(line).encode() for line in lines])
    config = config.model_copy(update={"rows_per_shard": 200})
    alone = build_dataset([source], tmp_path / "alone", config, name="rows", workers=1)
    monkeypatch.setattr(build, "SMALL_BYTES", 0)

    def kill() -> None:
        while not (shards := list(tmp_path.glob("shared/shards/part-*.parquet"))) or len(shards) > 9:
            time.sleep(0.005)
        workers = [
            pid for pid in descendants(os.getpid()) if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]
        for pid in workers:
            os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    shared = build_dataset([source], tmp_path / "shared", config, name="rows", workers=2)
    killer.join()
    assert "is done again" in caplog.text
    assert shared.fingerprint == alone.fingerprint and shared.build == alone.build


@pytest.mark.slow
def test_a_part_whose_processes_are_all_killed_is_one_error() -> None:
    with pytest.raises(AssayError, match=r"3 processes were killed .* memory"):
        list(one_by_one(os._exit, [(1,)]))


def descendants(pid: int) -> list[int]:
    children = [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return children + [below for child in children for below in descendants(child)]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_where_the_inputs_lie_does_not_change_the_dataset(tmp_path: Path, config) -> None:
    moved = tmp_path / "elsewhere" / "tokenizer.json"
    moved.parent.mkdir()
    moved.write_bytes(Path(config.tokenizer).read_bytes())
    source = write(tmp_path / "rows.jsonl", encoded())
    here = build_dataset([source], tmp_path / "here", config, workers=1)
    moved_config = config.model_copy(update={"tokenizer": str(moved)})
    copied = write(tmp_path / "elsewhere" / "rows.jsonl", encoded())
    os.utime(copied, (1.0, 1.0))
    rebuilt = build_dataset([copied], tmp_path / "there", moved_config, workers=1)
    assert rebuilt.fingerprint == here.fingerprint
