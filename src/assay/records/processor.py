"""The kind of processor that arithmetic was done on: on equal kinds, equal steps give equal bits."""

from assay.records.record import Record

CUBLAS_WORKSPACE = ":16:8"
"""cuBLAS's workspace (`CUBLAS_WORKSPACE_CONFIG`) unless the environment sets another. It is too small to split the sums
of a product, so a row of a product does not depend on the other rows."""
_UNRECORDED_WORKSPACE = ":4096:8"
"""That of all ranks before it was recorded."""


class Processor(Record):
    """Properties that determine the summation order of a processor's libraries."""

    model: str
    """Name of the device, e.g. `NVIDIA H100 80GB HBM3`; of the CPU where ranks compute on that."""
    instructions: str
    """On a CPU, the vendor and the instruction set that each library takes there, its limits in the environment
    counted: `GenuineIntel, oneDNN AVX512_CORE_AMX, MKL AVX512, ATen AVX512`. Empty where a GPU computes."""
    torch: str
    """Version of PyTorch, which brings the libraries."""
    cublas_workspace: str = ""
    """On a GPU, cuBLAS's workspace, by which it chooses kernels. Empty on a CPU, and before it was recorded."""

    def sums_like(self, other: "Processor") -> bool:
        """Return whether both processors compute equal bits.

        CPUs are compared by instruction set, not by model, because libraries choose kernels by it.
        """
        keys = [
            (
                processor.instructions or processor.model,
                processor.torch,
                processor.cublas_workspace or _UNRECORDED_WORKSPACE,
            )
            for processor in (self, other)
        ]
        return keys[0] == keys[1]

    def __str__(self) -> str:
        if self.instructions:
            return f"{self.model} ({self.instructions}; torch {self.torch})"
        workspace = f", cuBLAS workspace {self.cublas_workspace}" if self.cublas_workspace else ""
        return f"{self.model} (torch {self.torch}{workspace})"
