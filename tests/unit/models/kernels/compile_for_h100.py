"""A program: compiles the kernels for an H100, which takes no GPU, and prints what each one uses as JSON."""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from assay.models.kernels import logits_kernel, paged_attention_kernel

WIDE = {"query", "new_key", "new_value", "key_pages", "value_pages", "output", "logits", "bias"}
TYPES = {
    **dict.fromkeys(("targets", "positions"), "*i64"),
    **dict.fromkeys(("num_entries", "num_slots", "num_segments"), "i32"),
    "is_argmax": "*i1",
    "page_table": "*i32",
    "scale": "fp32",
}
"""Of arguments; of those in `WIDE`, bfloat16, and of all others, float32."""
GROUP = {"width": 64, "GROUP": 7, "QUERIES": 16, "WIDTH": 64}
ATTENTION = {**GROUP, "PAGE_TOKENS": 64, "PAGES_PER_SEGMENT": 4, "PRODUCT_IN_FLOAT32": False}
FLAGS = {"HAS_BIAS": False, "HAS_ENTROPIES": False, "SCORES": True, "GRADIENT": True}
KERNELS: list[tuple[Any, int, dict[str, Any]]] = [
    (logits_kernel._logits_kernel, 8, {**FLAGS, "BLOCK": 4096}),
    (paged_attention_kernel._attention_kernel, 4, {**ATTENTION, "IS_SPLIT": True}),
    (paged_attention_kernel._combine_kernel, 4, {**GROUP, "SEGMENT_TOKENS": 256}),
]


def compiled(kernel: Any, num_warps: int, constants: dict[str, Any]) -> dict[str, int]:
    names = kernel.arg_names
    types = {name: TYPES.get(name, "*bf16" if name in WIDE else "*fp32") for name in names}
    signature = {name: "constexpr" if name in constants else types[name] for name in names}
    aligned = {(names.index(name),): [["tt.divisibility", 16]] for name in names if signature[name][0] == "*"}
    aligned |= {(names.index(name),): [["tt.divisibility", 16]] for name in names if name == "num_entries"}
    source = ASTSource(kernel, signature, {(names.index(name),): value for name, value in constants.items()}, aligned)
    options = {"num_warps": num_warps, "enable_fp_fusion": False}
    found = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    stack = int(re.search(r"STACK:(\d+)", _resources(found.asm["cubin"]))[1])
    ptx = found.asm["ptx"]
    return {
        "stack_bytes": stack,
        "shared_bytes": found.metadata.shared,
        "matrix_products": len(re.findall(r"mma\.sync", ptx)),
        "fused_multiply_adds": len(re.findall(r"\bfma\.", ptx)),
        "loads_of_16_bytes": len(re.findall(r"ld\.global\S*v4\.b32", ptx)),
        "copies_ahead": len(re.findall(r"cp\.async\.c[ag]", ptx)),
    }


def _resources(program: bytes) -> str:
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(program)
        file.flush()
        return subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    json.dump({kernel.__name__: compiled(kernel, *how) for kernel, *how in KERNELS}, sys.stdout)
