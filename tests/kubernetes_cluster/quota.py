"""The controller of resource quotas: it writes in their status what the pods of a namespace use."""

from kubernetes_cluster.admission import used_in
from kubernetes_cluster.kinds import QUOTA
from kubernetes_cluster.store import Store, namespace_of


class QuotaController:
    """Keeps `status.hard` and `status.used`."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def sync(self) -> None:
        """Look at all quotas once."""
        for quota in self._store.all(QUOTA):
            hard, used = quota["spec"].get("hard", {}), used_in(self._store, namespace_of(quota))
            status = {"hard": dict(hard), "used": {name: f"{float(used.get(name, 0)):g}" for name in hard}}
            if quota.get("status") != status:
                with self._store.editing(QUOTA, quota):
                    quota["status"] = status
