"""Logs laid out as inspect-ai 0.3.285 writes them."""

import json
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from assay.base.errors import ConfigError, DataError
from assay.evals.imports import read_files
from assay.evals.inspect_log import ZSTANDARD

SPEC = {"task": "org/security", "task_version": 0, "model": "hf/tiny"}


def samples_of(values, scorer="judge"):
    """`values[sample][epoch]`"""
    return [
        {
            "id": k,
            "epoch": epoch,
            "input": "q",
            "target": "t",
            "scores": {scorer: {"value": value, "answer": "a"}},
        }
        for k, epochs in enumerate(values)
        for epoch, value in enumerate(epochs, start=1)
    ]


def summary(value, scorer="judge", name=None, reducer=None, metric="accuracy"):
    metrics = {metric: {"name": metric, "value": value, "params": {}}}
    return {"name": name or scorer, "scorer": scorer, "reducer": reducer, "metrics": metrics}


def json_log(folder: Path, samples, summaries=(), reductions=()) -> Path:
    tree = {"version": 2, "eval": SPEC, "samples": samples, "results": {"scores": list(summaries)}}
    (folder / "log.json").write_text(json.dumps({**tree, "reductions": list(reductions)}))
    return folder / "log.json"


def zstandard_archive(path: Path, contents: dict[str, bytes], *, frames: int = 1) -> Path:
    """As Python 3.14 writes it; this version's `zipfile` does not support method 93."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in contents.items():
            size = -(-len(data) // frames)
            pieces = [data[start : start + size] for start in range(0, len(data), size)]
            archive.writestr(name, b"".join(pa.compress(piece, "zstd", asbytes=True) for piece in pieces))
            archive.getinfo(name).compress_type = ZSTANDARD
            archive.getinfo(name).file_size = len(data)
            archive.getinfo(name).CRC = zlib.crc32(data)
    return path


def archive_contents(samples) -> dict[str, bytes]:
    files = {f"samples/{sample['id']}_epoch_{sample['epoch']}.json": sample for sample in samples}
    files |= {"header.json": {"version": 2, "eval": SPEC}, "_journal/start.json": {}, "summaries.json": []}
    return {name: json.dumps(tree).encode() for name, tree in files.items()}


@pytest.mark.parametrize("frames", [1, 3])
def test_archives_packed_with_zstandard_are_read(tmp_path, frames):
    path = zstandard_archive(tmp_path / "log.eval", archive_contents(samples_of([["C"], ["I"]])), frames=frames)
    with zipfile.ZipFile(path) as archive, pytest.raises(NotImplementedError):
        archive.read("header.json")
    (found,) = read_files([path])
    assert [item.score for item in found.items] == [1.0, 0.0]


@pytest.mark.parametrize("part", ["contents", "checksum", "method"])
def test_a_damaged_archive_is_refused_without_a_traceback(tmp_path, part):
    path = zstandard_archive(tmp_path / "log.eval", archive_contents(samples_of([["C"], ["I"]])))
    data = bytearray(path.read_bytes())
    central = data.index(b"PK\x01\x02")
    local = data.index(b"samples/") + len("samples/0_epoch_1.json")
    if part == "contents":
        data[local + 4 : local + 12] = b"\xff" * 8
    else:
        data[central + (16 if part == "checksum" else 10)] ^= 0x55
    path.write_bytes(data)
    with pytest.raises(DataError, match="again"):
        read_files([path])


def test_of_a_sample_that_was_scored_again_the_last_version_counts(tmp_path):
    with (
        pytest.warns(UserWarning, match="Duplicate name"),
        zipfile.ZipFile(tmp_path / "l.eval", "w") as archive,
    ):
        for value in ("I", "C"):
            for name, data in archive_contents(samples_of([[value]])).items():
                archive.writestr(name, data)
    (found,) = read_files([tmp_path / "l.eval"])
    assert [item.score for item in found.items] == [1.0]


def test_each_key_of_a_dictionary_is_a_benchmark(tmp_path):
    values = [[{"fluent": "C", "true": 0.5}], [{"fluent": "I", "true": None}]]
    summaries = [summary(0.5, name="fluent"), summary(0.5, name="true", metric="mean")]
    path = json_log(tmp_path, samples_of(values), summaries)
    fluent, true = read_files([path])
    assert [log.identity.benchmark for log in (fluent, true)] == ["security.fluent", "security.true"]
    assert [item.score for item in fluent.items] == [1.0, 0.0]
    assert [item.score for item in true.items] == [0.5, None]
    assert fluent.identity.grader_sha256 != true.identity.grader_sha256
    assert not fluent.difference and not true.difference
    (alone,) = read_files([path], metric="judge.true")
    assert alone == true
    with pytest.raises(ConfigError, match=r"no score 'other', but judge\.fluent, judge\.true"):
        read_files([path], metric="other")


def test_what_other_reducers_made_of_epochs_is_a_benchmark_of_its_own(tmp_path):
    values = [["C", "I"], ["I", "I"]]
    reductions = [
        {
            "scorer": "judge",
            "reducer": name,
            "samples": [{"sample_id": k, "value": v} for k, v in enumerate(reduced)],
        }
        for name, reduced in (("mean", [0.5, 0.0]), ("max", [1.0, 0.0]))
    ]
    summaries = [summary(0.25, reducer="mean"), summary(0.5, reducer="max")]
    epochs, largest = read_files([json_log(tmp_path, samples_of(values), summaries, reductions)])
    assert [(item.item_id, item.score) for item in epochs.items] == [
        ("0/1", 1.0), ("0/2", 0.0), ("1/1", 0.0), ("1/2", 0.0),
    ]  # fmt: skip
    assert (largest.identity.benchmark, [item.score for item in largest.items]) == ("security.max", [1.0, 0.0])
    assert not epochs.difference and not largest.difference
    with pytest.raises(DataError, match="no values by sample"):
        read_files([json_log(tmp_path, samples_of(values), summaries)])


@pytest.mark.parametrize(
    ("values", "reported", "difference"),
    [
        ([["C"], ["I"]], 0.5, ""),
        (
            [["C", "C"], ["I", float("nan")]],
            0.5,
            "is 0.5, the mean of the items 0.666667: it counts samples alike",
        ),
        ([["C"], ["I"]], 0.9, "is 0.9, the mean of the items 0.5: it is not the mean of the 2 items"),
        ([["C"], ["I"]], float("nan"), ""),
        ([[float("nan")]], 0.3, ""),
    ],
)
def test_inspects_own_mean_is_compared_and_a_difference_is_said(tmp_path, values, reported, difference):
    (found,) = read_files([json_log(tmp_path, samples_of(values), [summary(reported)])])
    assert difference in found.difference
    assert bool(difference) == bool(found.difference)


def test_an_import_is_the_same_from_either_form_of_a_log(tmp_path):
    rng = np.random.default_rng(0)
    samples = samples_of([[float(value)] for value in rng.random(20)])
    (packed,) = read_files([zstandard_archive(tmp_path / "log.eval", archive_contents(samples))])
    (plain,) = read_files([json_log(tmp_path, samples)])
    assert (packed.identity, packed.items) == (plain.identity, plain.items)
