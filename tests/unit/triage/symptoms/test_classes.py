"""Messages as the systems of the field write them, amid noise, and the class that a person would say."""

import errno
import os
import signal
from pathlib import Path

import pytest

from assay.triage.symptoms.classes import CLASS_OF_NAME, class_of
from assay.triage.symptoms.logs import read_log

NOISE = "\n".join(f"2026-03-01 10:00:{second:02d},123 INFO step {second} loss 2.31 lr 0.0003" for second in range(40))
TEARDOWN = """\
wandb: Waiting for W&B process to finish... (failed 1). Press Control-C to abort syncing.
srun: error: gpu-17: task 3: Exited with exit code 1
slurmstepd: error: *** STEP 4711.0 ON gpu-16 CANCELLED AT 2026-03-01T10:01:00 ***
"""

LINES = {
    "device_memory": (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has 79.1 GiB",
        "RuntimeError: CUDA error: out of memory",
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while allocating 17179 bytes.",
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`.",
        "cudaMalloc failed: out of memory",
    ),
    "host_memory": (
        "slurmstepd: error: Detected 1 oom_kill event in StepId=4711.0. Some tasks have been OOM Killed.",
        "[1044.1] Memory cgroup out of memory: Killed process 5011 (python) total-vm:201326592kB",
        "RuntimeError: DataLoader worker (pid 1183) is killed by signal: Killed.",
        "OSError: [Errno 12] Cannot allocate memory",
        "numpy.core._exceptions._ArrayMemoryError: Unable to allocate 64.0 GiB for an array with shape (8,)",
        "terminate called after throwing an instance of 'std::bad_alloc'",
        "FATAL ERROR: Reached heap limit Allocation failed - JavaScript heap out of memory",
        "Reason:       OOMKilled",
    ),
    "device_error": (
        "RuntimeError: CUDA error: an illegal memory access was encountered",
        "torch.AcceleratorError: CUDA error: device-side assert triggered",
        "NVRM: Xid (PCI:0000:3b:00): 79, pid=1122, GPU has fallen off the bus.",
        "RuntimeError: CUDA error: uncorrectable ECC error encountered",
        "RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED",
        "RuntimeError: No CUDA GPUs are available",
        "RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling cublasGemmEx",
    ),
    "collective": (
        "[rank3]:[E301 10:00:59] ProcessGroupNCCL.cpp:616] [Rank 3] Watchdog caught collective operation "
        "timeout: WorkNCCL(SeqNum=8123, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600012 milliseconds.",
        "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:219, unhandled system error",
        "RuntimeError: [gloo/transport/tcp/buffer.cc:84] Timed out waiting 1800000ms for recv operation",
        "RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running collective: ALLREDUCE",
        "[node1:12] UCX ERROR transport retry counter exceeded",
    ),
    "hang": (
        "E   Failed: Timeout >300.0s",
        "supervisor: ERROR: rank 2 hung in 'compute' of step 17: no progress for 180 s",
        "kernel: watchdog: BUG: soft lockup - CPU#3 stuck for 22s!",
    ),
    "crash": (
        "Fatal Python error: Segmentation fault",
        "bash: line 12:  5123 Segmentation fault      (core dumped) python train.py",
        "free(): double free detected in tcache 2",
        "*** stack smashing detected ***: terminated",
        "error: test failed: process didn't exit successfully (signal: 11, SIGSEGV: invalid memory reference)",
        "a.out: x.c:12: main: Assertion `p != NULL' failed.",
    ),
    "storage": (
        "OSError: [Errno 28] No space left on device",
        "OSError: [Errno 122] Disk quota exceeded: '/scratch/run/step-400/model.safetensors'",
        "OSError: [Errno 116] Stale file handle",
        "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory",
        "OSError: [Errno 5] Input/output error: '/lustre/data/shard-17'",
        "botocore.exceptions.ClientError: An error occurred (SlowDown) when calling the PutObject operation",
    ),
    "network": (
        "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='hub'): Max retries exceeded with url",
        "socket.gaierror: [Errno -3] Temporary failure in name resolution",
        "torch.distributed.DistNetworkError: The client socket has timed out after 600000ms while connecting.",
        "httpx.ReadTimeout: The read operation timed out",
        "urllib3.exceptions.SSLError: [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed",
        "requests.exceptions.HTTPError: 503 Server Error: Service Unavailable for url: http://judge:8000/v1",
        "Error: connect ECONNREFUSED 127.0.0.1:5432",
        "java.net.UnknownHostException: repo.example",
        "grpc._channel._InactiveRpcError: StatusCode.UNAVAILABLE",
        "fatal: unable to access 'https://git.example/x.git/': Could not resolve host: git.example",
    ),
    "missing_file": (
        "FileNotFoundError: [Errno 2] No such file or directory: '/data/train.parquet'",
        "botocore.errorfactory.NoSuchKey: An error occurred (NoSuchKey) when calling the GetObject operation",
        "OSError: ./models/base is not a local folder and is not a valid model identifier",
        "java.io.FileNotFoundException: /data/x.csv (No such file or directory)",
        'Error: Os { code: 2, kind: NotFound, message: "No such file or directory" }',
    ),
    "permission": (
        "PermissionError: [Errno 13] Permission denied: '/scratch/shared/run.lock'",
        "huggingface_hub.errors.GatedRepoError: 401 Client Error. Access to model is restricted.",
        "botocore.exceptions.ClientError: An error occurred (AccessDenied) when calling PutObject",
        "botocore.exceptions.NoCredentialsError: Unable to locate credentials",
        "git@example.org: Permission denied (publickey).",
        "npm error 403 403 Forbidden - GET https://registry.example/x",
        "google.auth.exceptions.DefaultCredentialsError: Your default credentials were not found.",
    ),
    "environment": (
        "ModuleNotFoundError: No module named 'flash_attn'",
        "ImportError: libcudart.so.12: cannot open shared object file: No such file or directory",
        "ImportError: /lib/x86_64-linux-gnu/libstdc++.so.6: version `GLIBCXX_3.4.32' not found",
        "RuntimeError: CUDA driver version is insufficient for CUDA runtime version",
        "run.sh: line 4: nvcc: command not found",
        "ERROR: No matching distribution found for torch==2.99.0",
        "RuntimeError: CUDA error: no kernel image is available for execution on the device",
        "E: Version '8.9' for 'libcudnn8-dev' was not found",
        "PackagesNotFoundError: The following packages are missing from the target environment",
        'meson.build:1:0: ERROR: Dependency "gtk4" not found, tried pkgconfig and cmake',
        "/usr/bin/python: No module named pytest",
        'error: failed to select a version for the requirement `tokio = "^9"`',
        "main.go:4:2: no required module provides package example.org/x; to add it:",
    ),
    "data": (
        "json.decoder.JSONDecodeError: Expecting ',' delimiter: line 1 column 812 (char 811)",
        "UnicodeDecodeError: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte",
        "pyarrow.lib.ArrowInvalid: Parquet magic bytes not found in footer.",
        "datasets.exceptions.DatasetGenerationError: An error occurred while generating the dataset",
        "safetensors_rust.SafetensorError: Error while deserializing header: HeaderTooLarge",
        "pyarrow.lib.ArrowInvalid: Could not open Parquet input source 'x': Parquet magic bytes not found in footer.",
        "_pickle.UnpicklingError: invalid load key, '<'.",
    ),
    "not_finite": (
        "FloatingPointError: loss is nan at step 1200",
        "RuntimeError: The total norm of order 2.0 for gradients is non-finite, so it cannot be clipped.",
        "RuntimeError: probability tensor contains either `inf`, `nan` or element < 0",
        "FloatingPointError: Minimum loss scale reached (0.0001). Your loss is probably exploding.",
    ),
    "preempted": (
        "slurmstepd: error: *** JOB 4711 ON gpu-16 CANCELLED AT 2026-03-01T10:00:59 DUE TO PREEMPTION ***",
        "slurmstepd: error: *** JOB 4711 ON gpu-16 CANCELLED AT 2026-03-01T10:00:59 DUE TO TIME LIMIT ***",
        "##[error]The operation was canceled.",
        "Error: pod train-0 was evicted: The node was low on resource: ephemeral-storage.",
        "Error: Job was active longer than specified deadline",
        "ERROR: Job failed: execution took longer than 1h0m0s seconds",
    ),
    "program": (
        "KeyError: 'labels'",
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied (8x512 and 768x768)",
        "AssertionError: expected 4 ranks, got 3",
        "TypeError: forward() got an unexpected keyword argument 'num_items_in_batch'",
        "src/loader.cc:41:9: error: 'foo' was not declared in this scope",
        "panic: runtime error: index out of range [3] with length 3",
        "error[E0425]: cannot find value `x` in this scope",
        "E   AssertionError: assert 'timeout' == 'ok'",
    ),
}
ERRNO_SAMPLE = {
    errno.ENOSPC: "storage", errno.EROFS: "storage", errno.EACCES: "permission", errno.ENOENT: "missing_file",
    errno.ENOMEM: "host_memory", errno.EMFILE: "environment", errno.ECONNRESET: "network", errno.EPIPE: "network",
}  # fmt: skip
CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGKILL)
CASES_OF_LINES = [(symptom_class, text) for symptom_class, texts in LINES.items() for text in texts]


@pytest.mark.parametrize(("symptom_class", "text"), CASES_OF_LINES)
def test_a_message_is_of_the_class_that_a_person_would_say(symptom_class: str, text: str, tmp_path: Path) -> None:
    (log := tmp_path / "rank0.log").write_text(f"{NOISE}\n{text}\n{TEARDOWN}")
    found = read_log(log)[0]
    assert (found.symptom_class, found.line) == (symptom_class, 41)
    assert found.candidates[0].text.endswith(text[-60:])


@pytest.mark.parametrize(
    ("text", "symptom_class"),
    [
        *((f"org.example.{name}: 7 of 9", symptom_class) for name, symptom_class in CLASS_OF_NAME.items()),
        *((f"cp: x: {os.strerror(number)}", known) for number, known in ERRNO_SAMPLE.items()),
        *((f"failed with [Errno {number}]", known) for number, known in ERRNO_SAMPLE.items()),
        *((f"process ended with exit code {128 + number}", "crash") for number in CRASHES),
        *((f"process ended with exit code {-number}", "crash") for number in CRASHES),
        *((f"request failed: HTTP {number}", "network") for number in (429, 500, 503)),
        *((f"request failed: HTTP {number}", "permission") for number in (401, 403)),
    ],
)
def test_standard_words_have_their_class(text: str, symptom_class: str) -> None:
    assert class_of(text) == symptom_class


def test_a_name_is_known_by_its_end_and_a_cause_precedes_its_wrapper() -> None:
    assert class_of("acme.io.ShardFileNotFoundException: 7") == "missing_file"
    assert class_of("ImportError: libx.so: cannot open shared object file: No such file or directory") == "environment"
    assert class_of("ConnectionError: [Errno 28] No space left on device") == "storage"


def test_a_log_without_trouble_is_unknown_and_names_no_line(tmp_path: Path) -> None:
    (log := tmp_path / "calm.log").write_text(NOISE)
    found = read_log(log)[0]
    assert (found.symptom_class, found.line, found.candidates, found.num_lines) == ("unknown", None, (), 40)
