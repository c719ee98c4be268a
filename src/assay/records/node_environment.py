"""Software environment of an attempt's node: possible causes when many attempts fail."""

from assay.records.record import Record


class NodeEnvironment(Record):
    """Environment of the ranks on one node. Unknown values are empty."""

    python: str
    """Version of Python."""
    kernel: str
    """Release of the operating system's kernel."""
    driver: str
    """Version of the NVIDIA driver that is loaded."""
    image: str
    """The container's image, by `ASSAY_IMAGE` or what Apptainer, Slurm or enroot set."""
    user: str
    """User who started it."""
    launcher: str
    """`slurm`, `kubernetes` or `machine`: what holds it."""
    job: str
    """The scheduler's number of that job."""
    partition: str
    """The part of the cluster that the job queued for."""
    cuda: str = ""
    """Version of CUDA that torch was built with; empty until ranks that compute on it have told."""
    nccl: str = ""
    """Version of NCCL that torch has loaded; likewise."""
