"""The processor type of this machine's ranks, and whether a run may resume on it.

Libraries choose kernels by the CPU's instruction sets and by limits in the environment (ONEDNN_MAX_CPU_ISA,
MKL_ENABLE_INSTRUCTIONS, ATEN_CPU_CAPABILITY). Different kernels sum in a different order, so the bits differ. The
type is found without torch, which the supervisor does not import.
"""

import os
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from itertools import takewhile
from pathlib import Path

from assay.base.errors import ConfigError
from assay.records.processor import CUBLAS_WORKSPACE, Processor
from assay.records.run import Run
from assay.store.attempts import saved_attempts
from assay.store.commit_log import CommitLog
from assay.store.metrics.recorded import recorded_steps

GPUS = Path("/proc/driver/nvidia/gpus")
"""The driver's folder with one subfolder for each GPU."""
_AVX512 = frozenset(("avx512f", "avx512bw", "avx512vl", "avx512dq"))
_Levels = Sequence[tuple[str, frozenset[str]]]
"""A library's names of instruction sets with the CPU flags that each needs, lowest first."""
ONEDNN: _Levels = (
    ("SSE41", frozenset()), ("AVX", frozenset(("avx",))), ("AVX2", frozenset(("avx2",))),
    ("AVX2_VNNI", frozenset(("avx_vnni",))), ("AVX512_CORE", _AVX512),
    ("AVX512_CORE_VNNI", _AVX512 | {"avx512_vnni"}), ("AVX512_CORE_BF16", _AVX512 | {"avx512_bf16"}),
    ("AVX512_CORE_FP16", _AVX512 | {"avx512_fp16"}), ("AVX512_CORE_AMX", _AVX512 | {"amx_tile", "amx_bf16"}),
    ("AVX512_CORE_AMX_FP16", _AVX512 | {"amx_fp16"}),
)  # fmt: skip
MKL: _Levels = (
    ("SSE4_2", frozenset()), ("AVX", frozenset(("avx",))), ("AVX2", frozenset(("avx2",))), ("AVX512", _AVX512),
)  # fmt: skip
ATEN: _Levels = (("DEFAULT", frozenset()), ("AVX2", frozenset(("avx2", "fma"))), ("AVX512", _AVX512 | {"fma"}))


def processor_here(environment: Mapping[str, str] | None = None, cpu: Mapping[str, str] | None = None) -> Processor:
    """Return the processor type of the ranks that this process starts, or the one that the arguments describe."""
    environment = os.environ if environment is None else environment
    gpus = gpus_here(environment)
    if gpus and "+cpu" not in version("torch"):
        return Processor(
            model=", ".join(sorted(set(gpus))),
            instructions="",
            torch=version("torch"),
            cublas_workspace=environment.get("CUBLAS_WORKSPACE_CONFIG", CUBLAS_WORKSPACE),
        )
    cpu_info = _cpu() if cpu is None else cpu
    flags = frozenset(cpu_info.get("flags", cpu_info.get("Features", "")).split())
    if platform.machine() in ("x86_64", "AMD64"):
        onednn = _instruction_level(
            ONEDNN, flags, environment.get("ONEDNN_MAX_CPU_ISA", environment.get("DNNL_MAX_CPU_ISA"))
        )
        mkl = _instruction_level(MKL, flags, environment.get("MKL_ENABLE_INSTRUCTIONS"))
        aten = _instruction_level(ATEN, flags, environment.get("ATEN_CPU_CAPABILITY"))
        instructions = f"{cpu_info.get('vendor_id', 'x86_64')}, oneDNN {onednn}, MKL {mkl}, ATen {aten}"
    else:
        vectors = sorted(flags & {"asimd", "sve", "sve2", "bf16", "i8mm"})
        instructions = ", ".join([platform.machine(), *vectors])
    return Processor(
        model=cpu_info.get("model name", platform.machine()), instructions=instructions, torch=version("torch")
    )


def refuse_other_processor(run: Run, log: CommitLog, here: Processor) -> None:
    """Raise `ConfigError` if the last commit was computed on another processor type."""
    last = log.commits()[-1:]
    attempts = {attempt.attempt: attempt.processor for attempt in saved_attempts(Path(run.run_dir))}
    was = attempts.get(last[0].attempt) if last else None
    if was is not None and not was.sums_like(here):
        raise ConfigError(
            f"run '{run.run_id}': step {last[0].step} was computed on {was}, and this is {here}, which rounds "
            "differently. If resumed here, the weights will not be bit for bit those of the first type; no row is "
            "skipped or repeated. Resume on the first type, or accept the difference with --other-device."
        )


def other_processor(run: Run, step: int, *, attempt: int | None) -> str | None:
    """Return a warning if a step was computed on another processor type, so a replay here may give other bits.

    `attempt`: None for the attempt whose step was committed.
    """
    attempts = recorded_steps(Path(run.run_dir), attempt=attempt).get(step)
    kinds = {saved_attempt.attempt: saved_attempt.processor for saved_attempt in saved_attempts(Path(run.run_dir))}
    was = None if attempts is None else kinds.get(attempts.attempt)
    if was is None or was.sums_like(here := processor_here()):
        return None
    return (
        f"step {step} was computed on {was}, and this is {here}, which rounds differently: numbers may differ in "
        "their last digits although nothing is wrong. Replay it on the first type to compare bits."
    )


def refuse_mixed(processors: Mapping[str, Processor]) -> None:
    """Raise `ConfigError` if the nodes, by name, have several processor types. The first one is the leader."""
    (leader, kind), *others = processors.items()
    mismatches = [f"{name} is {other}" for name, other in others if not other.sums_like(kind)]
    if mismatches:
        raise ConfigError(
            f"the nodes have processors that round differently: {leader} is {kind}; {'; '.join(mismatches)}. "
            "Their gradients cannot be checked against one another, and no two runs would agree. Request "
            "nodes of one type (slurm: --sbatch=--constraint=...), or set the same limits on all of them "
            "(ONEDNN_MAX_CPU_ISA, MKL_ENABLE_INSTRUCTIONS, ATEN_CPU_CAPABILITY)."
        )


def _instruction_level(levels: _Levels, flags: frozenset[str], limit: str | None) -> str:
    """Return the highest level that the CPU has and the limit allows; an unknown limit is ignored."""
    names = [name for name, _ in levels]
    most = names.index(limit.upper()) if limit and limit.upper() in names else len(names) - 1
    return [name for name, needed in levels[: most + 1] if needed <= flags][-1]


def _cpu() -> dict[str, str]:
    """Return the fields of the first processor in /proc/cpuinfo."""
    try:
        lines = Path("/proc/cpuinfo").read_text().partition("\n\n")[0].splitlines()
    except OSError:
        return {}
    pairs = (line.partition(":") for line in lines)
    return {key.strip(): value.strip() for key, _, value in pairs}


def gpus_here(environment: Mapping[str, str] | None = None) -> list[str]:
    """Return the driver's names of the GPUs that CUDA_VISIBLE_DEVICES shows to ranks here.

    CUDA stops at the first unknown index, e.g. `-1`. Only the driver can resolve a UUID, so a UUID counts as the
    first GPU.
    """
    lines = [line for path in sorted(GPUS.glob("*/information")) for line in path.read_text().splitlines()]
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("Model:")]
    visible = (os.environ if environment is None else environment).get("CUDA_VISIBLE_DEVICES")
    if visible is None or not names:
        return names
    shown = takewhile(
        lambda index: index not in ("", "-1") and not (index.isdecimal() and int(index) >= len(names)),
        visible.split(","),
    )
    return [names[int(text) if text.isdecimal() else 0] for text in shown]
