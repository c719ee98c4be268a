"""Logs of other tools that were cut short are refused, or count as what they are."""

import json
import zipfile
from pathlib import Path

import pytest

from assay.base.errors import ConfigError, DataError
from assay.evals.imports import read_files
from assay.evals.queue import Checkpoint, result_of
from assay.reporting.documents.benchmarks import notes
from assay.reporting.views.benchmark_history import matrix_of, score_row
from assay.statistics.benchmark_items import items_table, score_matrix

WHOLE = 10
DATE = "2026-11-20T10-11-12.345678"


def inspect_tree(num: int, *, status: str = "success", epochs: int = 1, **more) -> dict:
    samples = [
        {"id": k, "epoch": epoch, "input": "q", "target": "t", "scores": {"exact": {"value": "C"}}}
        for k in range(WHOLE)
        for epoch in range(1, epochs + 1)
    ]
    spec = {"task": "arith", "model": "m", "dataset": {"samples": WHOLE}, "config": {"epochs": epochs}}
    return {"status": status, "eval": spec, "samples": samples[:num], **more}


def inspect_json(folder: Path, num: int, **options) -> Path:
    (folder / "log.json").write_text(json.dumps(inspect_tree(num, **options)))
    return folder / "log.json"


def inspect_archive(folder: Path, num: int, **options) -> Path:
    tree = inspect_tree(num, **options)
    with zipfile.ZipFile(folder / "log.eval", "w") as archive:
        for sample in tree.pop("samples"):
            archive.writestr(f"samples/{sample['id']}_epoch_{sample['epoch']}.json", json.dumps(sample))
        archive.writestr("header.json", json.dumps(tree))
    return folder / "log.eval"


def oaieval_record(folder: Path, num: int, *, status: str = "success") -> Path:
    rows = [{"spec": {"completion_fns": ["m"], "eval_name": "arith"}}]
    rows += [{"sample_id": f"s.{k}", "type": "match", "data": {"correct": True}} for k in range(num)]
    rows += [{"final_report": {"accuracy": 1.0}}] if status == "success" else []
    (folder / "r.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder / "r.jsonl"


def harness_samples(folder: Path, num: int, *, original: int = WHOLE) -> Path:
    rows = [{"doc_id": k, "filter": "none", "metrics": ["acc"], "acc": float(k % 2)} for k in range(num)]
    path = folder / f"samples_arith_{DATE}.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    counts = {"n-samples": {"arith": {"original": original, "effective": WHOLE}}}
    summary = {"results": {"arith": {"acc,none": 0.5}}, "model_name": "m", **counts}
    (folder / f"results_{DATE}.json").write_text(json.dumps(summary))
    return path


@pytest.mark.parametrize("log", [inspect_json, inspect_archive, oaieval_record, harness_samples])
def test_a_whole_log_is_taken_over(tmp_path, log):
    (found,) = read_files([log(tmp_path, WHOLE)])
    assert (len(found.items), found.incomplete_reason) == (WHOLE, "")


CUT = [
    (inspect_json, 4, {"status": "cancelled"}, "'cancelled'; it has 4 of 10 items"),
    (inspect_json, 4, {"status": "error"}, "'error'"),
    (inspect_json, 4, {"status": "started"}, "'started'"),
    (inspect_json, WHOLE, {"status": "error"}, "'error'"),
    (inspect_archive, 4, {"status": "cancelled"}, "'cancelled'; it has 4 of 10 items"),
    (inspect_json, 4, {}, "it has 4 of 10 items"),
    (inspect_json, 9, {"epochs": 2}, "it has 9 of 20 items"),
    (inspect_json, WHOLE, {"results": {"total_samples": 12}}, "it has 10 of 12 items"),
    (oaieval_record, 4, {"status": "killed"}, "no final_report"),
    (harness_samples, 7, {}, "it has 7 of 10 items"),
]


@pytest.mark.parametrize(("log", "num", "options", "reason"), CUT)
def test_a_log_that_was_cut_short_is_refused_or_counts_as_such(tmp_path, log, num, options, reason):
    path = log(tmp_path, num, **options)
    with pytest.raises(DataError, match=f"is not whole: .*{reason}.*--partial"):
        read_files([path])
    (found,) = read_files([path], is_partial_allowed=True)
    result = result_of(
        Checkpoint("r", "c", 0, 1, "w"), found.identity, found.items, 1.0, source=found.source,
        incomplete_reason=found.incomplete_reason,
    )  # fmt: skip
    assert result.num_items - result.num_failed == num
    assert result.failures == ({"not_run": result.num_failed} if result.num_failed else {})
    assert result.could_detect is None, "it covers nothing"
    assert reason in notes(result)[0]
    with pytest.raises(ConfigError, match="is not whole"):
        score_matrix([(result, items_table(found.items))] * 2)
    whole = result.model_copy(update={"incomplete_reason": ""})
    rows = [(item.version_sha256(), score_row(item.to_json(), source="")) for item in (result, whole)]
    assert len(matrix_of(rows).columns) == 2, "it is no best so far of whole ones"


def test_a_part_that_was_chosen_is_whole_and_said(tmp_path):
    (found,) = read_files([harness_samples(tmp_path, WHOLE, original=100)])
    assert (found.difference, found.incomplete_reason) == ("a part: 10 of 100 items (--limit)", "")
    tree = inspect_tree(4)
    for limit in (4, [3, 7]):
        tree["eval"]["config"]["limit"] = limit
        (tmp_path / "log.json").write_text(json.dumps(tree))
        (found,) = read_files([tmp_path / "log.json"])
        assert (len(found.items), found.difference[:26]) == (4, "a part: 4 of 10 samples (-")


def test_more_items_than_a_log_counts_are_refused(tmp_path):
    with pytest.raises(DataError, match="10 items, but its own count is 8"):
        read_files([inspect_json(tmp_path, WHOLE, results={"total_samples": 8})])


@pytest.mark.parametrize("share", [0.1, 0.5, 0.97])
@pytest.mark.parametrize("log", [inspect_json, inspect_archive, oaieval_record, harness_samples])
def test_a_file_that_breaks_off_is_refused(tmp_path, log, share):
    path = log(tmp_path, WHOLE)
    data = path.read_bytes()
    path.write_bytes(data[: int(share * len(data))])
    with pytest.raises(DataError, match=r"truncated|cut short|neither whole|is not whole"):
        read_files([path], is_partial_allowed=log not in (oaieval_record, harness_samples))


def test_samples_without_a_score_are_failed_items(tmp_path):
    marks = [
        {"sample_id": "a", "type": "match", "data": {"correct": True}},
        {"sample_id": "b", "type": "sampling", "data": {"sampled": "x"}},
        {"sample_id": "c", "type": "match", "data": {"correct": None}},
        {"sample_id": "d", "type": "metrics", "data": {"score": float("nan")}},
    ]
    lines = [{"spec": {"eval_name": "e"}}, *marks, {"final_report": {"accuracy": 1.0}}]
    (tmp_path / "r.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (found,) = read_files([tmp_path / "r.jsonl"])
    assert {item.item_id: item.score for item in found.items} == {"a": 1.0, "b": None, "c": None, "d": None}
    path = tmp_path / f"samples_arith_{DATE}.jsonl"
    rows = [{"doc_id": k, "metrics": ["acc"], "acc": value} for k, value in enumerate([1.0, None, float("nan")])]
    path.write_text("\n".join(map(json.dumps, rows)))
    (found,) = read_files([path])
    assert [item.failure and item.failure.kind for item in found.items] == [None, "unscored", "unscored"]
    assert "without results_" in found.difference


def test_the_records_of_two_runs_in_one_file_are_refused(tmp_path):
    path = oaieval_record(tmp_path, WHOLE)
    path.write_text(path.read_text() + "\n" + path.read_text())
    with pytest.raises(DataError, match="2 runs in one file"):
        read_files([path])


def test_what_ended_a_sample_of_inspect_is_kept(tmp_path):
    tree = inspect_tree(3)
    tree["eval"]["dataset"]["samples"] = 3
    tree["samples"][0]["output"] = {"choices": [{"stop_reason": "max_tokens"}]}
    tree["samples"][1]["limit"] = {"type": "message", "limit": 5}
    tree["samples"][2]["output"] = {"choices": [{"stop_reason": "stop"}]}
    (tmp_path / "log.json").write_text(json.dumps(tree))
    (found,) = read_files([tmp_path / "log.json"])
    assert [item.finish_reason for item in found.items] == ["length", "length", "stop"]


def test_a_sample_that_inspects_user_invalidated_is_a_failed_item(tmp_path):
    tree = inspect_tree(WHOLE)
    tree["samples"][3]["invalidation"] = {"author": "a", "reason": "the sandbox was broken"}
    (tmp_path / "log.json").write_text(json.dumps(tree))
    (found,) = read_files([tmp_path / "log.json"])
    assert found.items[3].failure == ("sample_error", "the sandbox was broken")
