"""Other tools' results as ours; files as lm-eval 0.4.13, inspect-ai 0.3.285 and evals 3.0.1 write them."""

import json
import math
import zipfile
from pathlib import Path

import pytest

from assay.base.errors import ConfigError, DataError
from assay.evals.imports import read_files
from assay.statistics.benchmark_items import items_table, summarise

DATE = "2026-11-20T10-11-12.345678"


def harness_files(folder: Path, task: str, samples: list[dict], results: dict, better: dict) -> Path:
    path = folder / f"samples_{task}_{DATE}.jsonl"
    common = {"doc": {}, "target": "x", "arguments": {}, "resps": [["a"]], "filtered_resps": ["a"]}
    path.write_text(
        "\n".join(
            json.dumps(
                {
                    "doc_id": k,
                    "doc_hash": f"d{k}",
                    "prompt_hash": f"p{k}",
                    "target_hash": f"t{k}",
                    **common,
                    **row,
                }
            )
            for k, row in enumerate(samples)
        )
    )
    summary = {
        "results": {task: results},
        "higher_is_better": {task: better},
        "model_name": "org/tiny",
        "versions": {task: 1},
    }
    (folder / f"results_{DATE}.json").write_text(json.dumps(summary))
    return path


def row(**metrics) -> dict:
    return {"filter": "none", "metrics": list(metrics), **metrics}


def test_lm_evals_items_and_their_mean_are_taken_over(tmp_path):
    samples = [row(acc=1.0, acc_norm=0.0), row(acc=0.0, acc_norm=0.0), row(acc=1.0, acc_norm=1.0)]
    results = {"acc,none": 2 / 3, "acc_norm,none": 1 / 3}
    path = harness_files(tmp_path, "arc_easy", samples, results, {"acc": True, "acc_norm": True})
    (found,) = read_files([path])
    assert (found.identity.benchmark, found.model, found.source) == (
        "arc_easy",
        "org/tiny",
        "lm-evaluation-harness",
    )
    assert [item.score for item in found.items] == [1.0, 0.0, 1.0]
    (normed,) = read_files([path], metric="acc_norm")
    assert [item.score for item in normed.items] == [0.0, 0.0, 1.0]
    assert normed.identity.grader_sha256 != found.identity.grader_sha256
    assert normed.identity.benchmark_sha256 == found.identity.benchmark_sha256


def test_lm_evals_bits_per_byte_weigh_by_bytes_as_it_does(tmp_path):
    pairs = [[-100.0, 40], [-30.0, 20]]
    value = 130.0 / 60 / math.log(2)
    samples = [row(bits_per_byte=pair) for pair in pairs]
    path = harness_files(tmp_path, "wikitext", samples, {"bits_per_byte,none": value}, {"bits_per_byte": False})
    (found,) = read_files([path])
    assert summarise(items_table(found.items)).score.value == pytest.approx(value)
    assert not found.identity.higher_is_better


def test_each_filter_of_lm_eval_is_a_benchmark_of_its_own(tmp_path):
    samples = [
        {"doc_id": k, "filter": name, "metrics": ["exact_match"], "exact_match": score}
        for k in range(2)
        for name, score in (("strict-match", 0.0), ("flexible-extract", 1.0))
    ]
    results = {"exact_match,strict-match": 0.0, "exact_match,flexible-extract": 1.0}
    path = harness_files(tmp_path, "gsm8k", samples, results, {"exact_match": True})
    names = {found.identity.benchmark: found.items[0].score for found in read_files([path])}
    assert names == {"gsm8k.flexible-extract": 1.0, "gsm8k.strict-match": 0.0}


def test_a_metric_that_is_no_mean_of_its_items_is_refused(tmp_path):
    path = harness_files(tmp_path, "cola", [row(mcc=1.0), row(mcc=0.0)], {"mcc,none": 0.31}, {"mcc": True})
    with pytest.raises(DataError, match=r"the mean of the items is 0\.500000, the tool's own result 0\.310000"):
        read_files([path])


def inspect_log(num_epochs: int = 1) -> tuple[dict, list[dict]]:
    header = {
        "version": 2,
        "status": "success",
        "eval": {"task": "org/security", "task_version": 0, "model": "hf/tiny"},
    }
    values = [
        ("C", None),
        ("I", None),
        ("P", None),
        (0.25, None),
        (float("nan"), None),
        ("C", {"message": "boom"}),
    ]
    samples = [
        {
            "id": k,
            "epoch": epoch,
            "input": "q",
            "target": "t",
            "scores": {"judge": {"value": value, "answer": "a"}},
            "error": error,
        }
        for k, (value, error) in enumerate(values)
        for epoch in range(1, num_epochs + 1)
    ]
    return header, samples


@pytest.mark.parametrize("is_archive", [True, False])
def test_inspects_scores_are_read_as_inspect_reads_them(tmp_path, is_archive):
    header, samples = inspect_log()
    path = tmp_path / ("log.eval" if is_archive else "log.json")
    if is_archive:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("header.json", json.dumps(header))
            for sample in samples:
                archive.writestr(f"samples/{sample['id']}_epoch_{sample['epoch']}.json", json.dumps(sample))
    else:
        path.write_text(json.dumps({**header, "samples": samples}))
    (found,) = read_files([path])
    assert found.identity.benchmark == "security"
    assert [item.score for item in found.items] == [1.0, 0.0, 0.5, 0.25, None, None]
    assert [item.failure.kind for item in found.items[4:]] == ["unscored", "sample_error"]


def test_epochs_of_a_sample_are_one_cluster(tmp_path):
    header, samples = inspect_log(num_epochs=2)
    (tmp_path / "log.json").write_text(json.dumps({**header, "samples": samples}))
    (found,) = read_files([tmp_path / "log.json"])
    assert [(item.item_id, item.cluster) for item in found.items[:2]] == [("0/1", "0"), ("0/2", "0")]


def test_an_oaieval_record_is_read_in_whatever_order_it_was_written(tmp_path):
    lines = [
        {"final_report": {"accuracy": 0.5}, "run_id": "r"},
        {"run_id": "r", "sample_id": "s.dev.0", "type": "sampling", "data": {"sampled": ["x"]}},
        {"run_id": "r", "sample_id": "s.dev.0", "type": "match", "data": {"correct": True, "sampled": "x"}},
        {"run_id": "r", "sample_id": "s.dev.1", "type": "match", "data": {"correct": False, "sampled": "y"}},
        {"spec": {"eval_name": "s.dev.v0", "completion_fns": ["m"]}},
    ]
    (tmp_path / "r.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (found,) = read_files([tmp_path / "r.jsonl"])
    assert [(item.item_id, item.score, item.completion) for item in found.items] == [
        ("s.dev.0", 1.0, "x"),
        ("s.dev.1", 0.0, "y"),
    ]
    assert (found.identity.benchmark, found.model) == ("s.dev.v0", "m")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [("x.json", "{}", "neither samples of lm-eval"), ("x.jsonl", '{"a": 1}\n{"a": 2}', "no line with a 'spec'"),
     ("x.jsonl", "{\n{", "line 1 is not JSON")],
)  # fmt: skip
def test_a_file_of_something_else_is_refused(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises((ConfigError, DataError), match=message):
        read_files([tmp_path / name])


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("random.jsonl", b"\xb5\xff\x00"),
        ("log.json", b'{"eval": 3, "samples": [1]}'),
        ("log.json", b'{"eval": {}, "samples": [{"scores": {"match": {}}}]}'),
        ("samples_arc_2026-11-20T10-11-12.json.jsonl", b'{"metrics": ["acc"], "acc": 1.0}'),
        ("r.jsonl", b'{"spec": 1}\n{"sample_id": "a", "type": "match", "data": {"correct": true}}'),
    ],
)
def test_a_damaged_log_is_refused_without_a_traceback(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=r"import it unchanged|line 1 is not JSON"):
        read_files([tmp_path / name])


def test_texts_with_other_line_ends_and_a_byte_order_mark_are_read(tmp_path):
    rows = [{"doc_id": k, "metrics": ["acc"], "acc": 1.0, "resps": "a\u2028b\u0085c"} for k in range(2)]
    path = tmp_path / f"samples_arc_{DATE}.jsonl"
    text = "\r\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    path.write_bytes(b"\xef\xbb\xbf" + text.encode())
    (found,) = read_files([path])
    assert [item.score for item in found.items] == [1.0, 1.0]


@pytest.mark.parametrize("name", ["r.jsonl", "log.json", f"samples_arc_{DATE}.jsonl"])
def test_a_key_that_stands_twice_is_refused(tmp_path, name):
    (tmp_path / name).write_text('{"eval": {}, "spec": {}, "metrics": ["acc"], "acc": 1.0, "acc": 0.0}')
    with pytest.raises(DataError, match='the key "acc" occurs twice'):
        read_files([tmp_path / name])


def test_a_sample_that_is_marked_twice_is_refused(tmp_path):
    mark = {"sample_id": "s.0", "type": "match", "data": {"correct": True}}
    lines = [{"spec": {"eval_name": "s"}}, mark, {**mark, "data": {"correct": False}}]
    (tmp_path / "r.jsonl").write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(DataError, match=r"sample 's\.0' is marked twice, 1 and 0"):
        read_files([tmp_path / "r.jsonl"])
