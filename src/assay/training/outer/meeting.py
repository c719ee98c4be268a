"""The store in which clusters meet: announcements, parts, and the log of outer steps. Knows nothing of tensors.

`poll` is the only decision: whoever sees all parts of an outer step, or those that are there at its deadline, puts the
entry. Of several clusters one succeeds, and the others read what it put. Waiting is measured on one cluster's own
monotonic clock, so clocks that differ change nothing.
"""

import secrets
from collections.abc import Mapping, Sequence

from assay.base.clock import Clock
from assay.base.config import changed_leaves
from assay.base.digest import sha256_of_bytes
from assay.base.errors import ConfigError, DataError, StoreError
from assay.records.outer import ClusterAnnounced, OuterBegan, OuterEntry, OuterPart, OuterStep
from assay.records.run import Run
from assay.store.logs.outer_log import outer_log
from assay.store.objects import ObjectStore
from assay.training.outer.config import OuterConfig
from assay.training.outer.state import OuterState, divided

READS = 3
"""Reads of a change before its bytes count as corrupt: a connection may damage one."""


class Meeting:
    """One cluster's view of the meeting place."""

    def __init__(self, store: ObjectStore, cluster: str, config: OuterConfig, clock: Clock) -> None:
        self.store = store
        self.cluster = cluster
        self._config = config
        self._clock = clock
        self._log = outer_log(store)

    def entries(self) -> tuple[OuterEntry, ...]:
        """Return all entries of the log of outer steps."""
        return self._log.state() or ()

    def check(self, announced: ClusterAnnounced) -> None:
        """Raise `ConfigError` if this cluster cannot take part with the others. Writes nothing."""
        others = self.announcements()
        if not self.entries():
            workers = {name: item.workers for name, item in {**others, announced.cluster: announced}.items()}
            _check_lanes(announced.recipe["loader"]["lanes"], workers)
        for other in others.values():
            if other.cluster == announced.cluster and other.run_id != announced.run_id:
                raise ConfigError(
                    f"{self.store.url}: cluster '{other.cluster}' is run '{other.run_id}' there. Give this one another "
                    f"name (--cluster), or resume that run where it is: assay train --resume {other.run_id}"
                )
            if other.cluster != announced.cluster:
                _check_alike(other, announced, self.store.url)

    def announce(self, announced: ClusterAnnounced) -> None:
        """Announce this cluster, once and for all. Raises `ConfigError` as `check` does."""
        self.check(announced)
        self.store.put_if_absent(f"clusters/{announced.cluster}.json", announced.to_sealed_json().encode())
        self.check(announced)

    def announcements(self) -> Mapping[str, ClusterAnnounced]:
        """Return the clusters that announced themselves, by name."""
        keys = sorted(item.key for item in self.store.list("clusters/"))
        found = [ClusterAnnounced.from_json(self.store.get(key), source=key) for key in keys]
        return {item.cluster: item for item in found}

    def begin(self, *, recipe_sha256: str, num_lanes: int, lane_steps: int, waited_s: float) -> bool:
        """Begin the run unless it has begun: with all clusters, or after the deadline with those that are there.

        Returns whether it has begun.
        """
        here = self.announcements()
        own = here[self.cluster]
        must_wait = len(here) < self._config.clusters and waited_s < self._config.deadline_s

        def decide(entries: tuple[OuterEntry, ...] | None) -> OuterEntry | None:
            if entries or must_wait:
                return None
            workers = {name: item.workers for name, item in here.items()}
            _check_lanes(num_lanes, workers)
            return OuterBegan(
                recipe_sha256=recipe_sha256,
                dataset_fingerprint=own.dataset_fingerprint,
                inner_steps=self._config.every,
                lane_steps=lane_steps,
                lanes=divided(range(num_lanes), workers),
            )

        entries = self._log.append(decide)
        if not entries:
            return False
        began = entries[0]
        assert isinstance(began, OuterBegan)
        if began.recipe_sha256 != recipe_sha256:
            raise ConfigError(f"{self.store.url}: another recipe is trained there. Meet in another folder.")
        return True

    def request_lanes(self, state: OuterState) -> None:
        """Request lanes for this cluster, which has none."""
        self.store.put_if_absent(f"requests/{state.outer_step:08d}-{self.cluster}.json", b"{}")

    def put_part(self, part: OuterPart, change: bytes) -> None:
        """Put a part with its change. Raises `DataError` if this cluster put another one for this outer step."""
        self.store.put_if_absent(_change_key(part.change_sha256), change)
        key = _part_key(part.outer_step, self.cluster)
        if self.store.put_if_absent(key, part.to_sealed_json().encode()):
            return
        found = OuterPart.from_json(self.store.get(key), source=key)
        if found.model_copy(update={"inner_s": part.inner_s}) != part:
            names = [name for name in type(part).model_fields if getattr(found, name) != getattr(part, name)]
            raise DataError(
                f"{key}: this cluster trained outer step {part.outer_step} before and again now, with other results "
                f"({', '.join(names)}). Its machines differ in their arithmetic, or another process trains as cluster "
                f"'{self.cluster}'."
            )

    def change(self, part: OuterPart) -> bytes:
        """Return the quantised change of a part. Raises `StoreError` if its bytes are not those of its digest."""
        key = _change_key(part.change_sha256)
        for _ in range(READS):
            data = self.store.get(key)
            if sha256_of_bytes(data) == part.change_sha256:
                return data
        raise StoreError(
            f"{self.store.url}/{key}: its bytes have not the digest of their name, {READS} times in a row. The store "
            "or the connection corrupts data: restore the object, or have the connection repaired."
        )

    def poll(self, state: OuterState, *, may_close: bool) -> OuterStep | None:
        """Return the entry of the outer step after `state`, or None if it has to be waited for.

        Puts the entry if all expected parts are there, or with `may_close` those that are.
        """
        number = state.outer_step + 1
        entries = self.entries()
        if len(entries) <= number:
            expected = state.expected()
            parts = [part for cluster in expected if (part := self._part(number, cluster)) is not None]
            if len(parts) < len(expected) and not may_close:
                return None
            entry = self._next_entry(state, parts)
            entries = self._log.append(lambda found: entry if len(found or ()) == number else None) or ()
        step = entries[number]
        assert isinstance(step, OuterStep)
        return step

    def _next_entry(self, state: OuterState, parts: Sequence[OuterPart]) -> OuterStep:
        digests = {part.weights_digest for part in parts}
        if len(digests) > 1:
            raise DataError(
                f"{self.store.url}: the clusters begin outer step {state.outer_step + 1} with different weights ("
                + ", ".join(f"{part.cluster}: {part.weights_digest[:12]}…" for part in parts)
                + "). One of them computes wrongly, or is another program. Replay the step on each: "
                "'assay runs replay RUN --outer N'."
            )
        workers = {name: item.workers for name, item in self.announcements().items()}
        found = self.store.list(f"requests/{state.outer_step:08d}-")
        requests = {item.key.partition("-")[2].removesuffix(".json") for item in found} & {*workers}
        return state.next_entry(parts, workers, requests, absent_after=self._config.absent_after)

    def _part(self, outer_step: int, cluster: str) -> OuterPart | None:
        key = _part_key(outer_step, cluster)
        return OuterPart.from_json(self.store.get(key), source=key) if self.store.exists(key) else None


def check_puts(store: ObjectStore) -> None:
    """Raise `ConfigError` if the store replaces what is to be put only if absent. Leaves nothing there."""
    key = f"probes/{secrets.token_hex(8)}"
    try:
        store.put_if_absent(key, b"first")
        if store.put_if_absent(key, b"second"):
            raise ConfigError(
                f"--meet {store.url}: it replaces an object that is to be put only if absent, so two clusters could "
                "put the same outer step. Use a store with conditional puts (S3, GCS, Azure, MinIO, a shared folder)."
            )
    finally:
        store.delete(key)


def announcement(run: Run, *, workers: int) -> ClusterAnnounced:
    """Return the announcement of a cluster's run."""
    assert run.cluster_of is not None
    recipe = {**run.recipe, "data": {**run.recipe["data"], "dataset": ""}}
    recipe.pop("evaluation", None)  # decides no weights, and its suite may be in another folder
    return ClusterAnnounced(
        cluster=run.cluster_of.cluster,
        run_id=run.run_id,
        workers=workers,
        recipe=recipe,
        dataset_fingerprint=run.dataset_fingerprint,
        code_version=run.code_version,
    )


def _change_key(sha256: str) -> str:
    return f"changes/{sha256}"


def _part_key(outer_step: int, cluster: str) -> str:
    return f"parts/{outer_step:08d}-{cluster}.json"


def _check_lanes(num_lanes: int, workers: Mapping[str, int]) -> None:
    if sum(workers.values()) > num_lanes:
        raise ConfigError(
            f"loader.lanes={num_lanes}: the clusters have {sum(workers.values())} workers "
            f"({', '.join(f'{name}: {count}' for name, count in workers.items())}), and each needs a lane. Use "
            "fewer workers, or a recipe with more lanes."
        )


def _check_alike(other: ClusterAnnounced, own: ClusterAnnounced, url: str) -> None:
    """Raise `ConfigError` unless two clusters train one recipe on one dataset with one release."""
    if changes := changed_leaves(dict(other.recipe), dict(own.recipe)):
        key, (other_value, own_value) = next(iter(changes.items()))
        more = f", and {len(changes) - 1} more" if len(changes) > 1 else ""
        raise ConfigError(
            f"{url}: cluster '{other.cluster}' trains with {key}={other_value}, this one with {key}={own_value}"
            f"{more}. All clusters train one recipe."
        )
    for what, other_value, own_value in (
        ("dataset", other.dataset_fingerprint[:12], own.dataset_fingerprint[:12]),
        ("version of assay", other.code_version, own.code_version),
    ):
        if other_value != own_value:
            raise ConfigError(
                f"{url}: cluster '{other.cluster}' has {what} {other_value}, this one {own_value}. All "
                "clusters need the same."
            )
