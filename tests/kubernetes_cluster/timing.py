"""A cluster's time constants, as Kubernetes sets them by default."""

from typing import NamedTuple


class Timing(NamedTuple):
    """Seconds, times `scale`; a test with processes scales them down. Grace times of pods are not scaled."""

    scale: float = 1.0

    def backoff_s(self, num_failures: int) -> float:
        """How long after its last failure a Job makes no pods: 10, 20, 40 s ... up to ten minutes."""
        return self.scale * min(600.0, 10.0 * 2.0 ** (num_failures - 1)) if num_failures else 0.0

    @property
    def create_retry_s(self) -> float:
        """After a pod was refused, e.g. by a quota."""
        return 5 * self.scale

    @property
    def node_grace_s(self) -> float:
        """After this silence a node is not ready."""
        return 40 * self.scale

    @property
    def pod_collection_s(self) -> float:
        """After this time pods of a node that is no more are failed."""
        return 60 * self.scale

    def toleration_s(self, seconds: float) -> float:
        """How long a pod stays on a lost node."""
        return self.scale * seconds
