"""The kind of processor is known before anything is computed, and another kind is told by name."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from assay.base.errors import ConfigError
from assay.elastic import processor
from assay.elastic.processor import gpus_here, processor_here, refuse_mixed, refuse_other_processor
from assay.records.commit import Commit
from assay.records.cursor import Cursor
from assay.records.processor import Processor
from assay.records.run import Attempt, Run
from assay.store.attempts import save_attempt
from assay.store.commit_log import CommitLog
from assay.store.objects import open_store
from machine import MACHINE

HERE = processor_here({})
OTHER = processor_here({"ATEN_CPU_CAPABILITY": "default"})
AVX512 = {"vendor_id": "GenuineIntel", "flags": "avx avx2 fma avx512f avx512bw avx512vl avx512dq"}
ONE_STEP = """\
import hashlib, torch
torch.manual_seed(0)
print(hashlib.sha256((torch.randn(64, 100) @ torch.randn(100, 48)).numpy().tobytes()).hexdigest())
"""


def log_with_commit(run: Run, own_processor: Processor) -> CommitLog:
    log = CommitLog(open_store(run.store_url))
    log.begin_attempt(world_size=1, now_s=0.0)
    save_attempt(
        Path(run.run_dir),
        Attempt(
            run_id="r",
            attempt=1,
            world_size=1,
            start_step=0,
            started_s=0.0,
            processor=own_processor,
            code_version=MACHINE["code_version"],
            folder=MACHINE["folder"],
            environment=MACHINE["environment"],
        ),
    )
    log.append(
        Commit(
            attempt=1, world_size=1, step=7, cursor=Cursor(), committed_s=0.0, folder="c",
            files=(), weights_digest="", receipts_from_step=0, rows_trained=0,
        )
    )  # fmt: skip
    return log


@pytest.mark.slow
@pytest.mark.skipif("ATen" not in HERE.instructions, reason="the variable limits x86 only")
def test_a_limit_in_the_environment_makes_another_kind_with_other_bits() -> None:
    def digest(**limits: str) -> str:
        return subprocess.check_output([sys.executable, "-c", ONE_STEP], env={**os.environ, **limits}).decode()

    assert not HERE.sums_like(OTHER)
    assert digest() == digest() != digest(ATEN_CPU_CAPABILITY="default")


@pytest.mark.parametrize("limit", ["ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS"])
def test_each_library_has_its_own_limit(limit: str) -> None:
    whole, limited = processor_here({}, AVX512), processor_here({limit: "AVX2"}, AVX512)
    assert not limited.sums_like(whole)
    assert limited.instructions.count("AVX2") == 1
    assert processor_here({limit: "AVX1024"}, AVX512) == whole


def test_another_model_with_the_same_instructions_sums_alike_and_another_gpu_does_not() -> None:
    assert HERE.sums_like(HERE.model_copy(update={"model": "another"}))
    assert not HERE.sums_like(HERE.model_copy(update={"torch": "1.0"}))
    gpu = Processor(model="H100", instructions="", torch="2")
    assert not gpu.sums_like(Processor(model="H200", instructions="", torch="2"))


def test_a_gpu_with_another_cublas_workspace_sums_differently(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "gpus_here", lambda environment: ["NVIDIA H100"])
    monkeypatch.setattr(processor, "version", lambda package: "2.13.0")
    small, large = processor_here({}), processor_here({"CUBLAS_WORKSPACE_CONFIG": ":4096:8"})
    unrecorded = large.model_copy(update={"cublas_workspace": ""})
    assert not small.sums_like(large) and large.sums_like(unrecorded)
    assert str(small) == "NVIDIA H100 (torch 2.13.0, cuBLAS workspace :16:8)"


def test_who_resumes_on_another_kind_is_told_so_before_anything_is_written(run: Run) -> None:
    log = log_with_commit(run, OTHER)
    with pytest.raises(ConfigError, match=r"step 7 was computed on .*ATen DEFAULT.*with --other-device"):
        refuse_other_processor(run, log, HERE)
    refuse_other_processor(run, log, OTHER)


def test_a_run_without_a_commit_goes_on_anywhere(run: Run) -> None:
    refuse_other_processor(run, CommitLog(open_store(run.store_url)), HERE)


def test_nodes_of_several_kinds_are_refused_by_name() -> None:
    refuse_mixed({"node 0 (a)": HERE, "node 1 (b)": HERE})
    with pytest.raises(ConfigError, match=r"node 0 \(a\) is .*; node 2 \(c\) is .*ATen DEFAULT"):
        refuse_mixed({"node 0 (a)": HERE, "node 1 (b)": HERE, "node 2 (c)": OTHER})


@pytest.mark.parametrize(
    ("visible", "seen"),
    [
        (None, "AAB"),
        ("2", "B"),
        ("1,2", "AB"),
        ("", ""),
        ("-1", ""),
        ("0,-1,1", "A"),
        ("2,3,0", "B"),
        ("GPU-5e", "A"),
    ],
)
def test_the_gpus_are_those_that_cuda_may_use(
    visible: str | None, seen: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for slot, model in enumerate("AAB"):
        (tmp_path / f"0000:0{slot}:00.0").mkdir()
        (tmp_path / f"0000:0{slot}:00.0" / "information").write_text(f"Model: \t\t {model}\nIRQ: 5\n")
    monkeypatch.setattr(processor, "GPUS", tmp_path)
    assert gpus_here({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}) == list(seen)
