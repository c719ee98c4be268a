"""The kind of processor that arithmetic was done on: on equal kinds, equal steps give equal bits."""

from assay.records.record import Record


class Processor(Record):
    """What decides in which order a processor's libraries sum."""

    model: str
    """Name of the device, e.g. `NVIDIA H100 80GB HBM3`; of the CPU where ranks compute on that."""
    instructions: str
    """On a CPU, the vendor and the instruction set that each library takes there, its limits in the environment
    counted: `GenuineIntel, oneDNN AVX512_CORE_AMX, MKL AVX512, ATen AVX512`. Empty where a GPU computes."""
    torch: str
    """Version of PyTorch, which brings the libraries."""

    def sums_like(self, other: "Processor") -> bool:
        """Whether equal bits are promised. Of CPUs the instructions decide: kernels are chosen by them, and
        models that have them are many."""
        ours, theirs = ((each.instructions or each.model, each.torch) for each in (self, other))
        return ours == theirs

    def __str__(self) -> str:
        return (
            f"{self.model} ({self.instructions}; torch {self.torch})"
            if self.instructions
            else (f"{self.model} (torch {self.torch})")
        )
