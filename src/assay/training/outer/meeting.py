"""The store in which clusters meet: announcements, parts, and the log of outer steps. Knows nothing of tensors.

`poll` is the only decision: whoever sees all parts of an outer step, or those that are there at its deadline, puts the
entry. Of several clusters one succeeds, and the others read what it put. Waiting is measured on one cluster's own
monotonic clock, so clocks that differ change nothing.

A cluster reads the changes of the others while it waits, and names only those that have the digest of their part. It
does not read its own back, which would cost as much of the link again. Whoever finds a damaged one reports it, and its
cluster puts it again from memory.
"""

import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence

from assay.base.config import changed_leaves
from assay.base.digest import sha256_of_bytes
from assay.base.errors import ConfigError, DamagedDataError, DataError, StoreError
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

    def __init__(self, store: ObjectStore, cluster: str, config: OuterConfig) -> None:
        self.store = store
        self.cluster = cluster
        self._config = config
        self._log = outer_log(store)
        self._changes: dict[str, bytes] = {}
        """By digest: intact changes of the next outer step, and this cluster's own of the last one."""
        self._reported: dict[str, DamagedDataError] = {}
        """By digest: changes that this cluster found damaged."""

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

    def begin(self, waited_s: float, *, recipe_sha256: str, num_lanes: int, lane_steps: int) -> OuterBegan | None:
        """Begin the run unless it has begun: with all clusters, or after the deadline with those that are there.

        Returns the first entry; None if the run has not begun.
        """
        here = self.announcements()
        must_wait = len(here) < self._config.clusters and waited_s < self._config.deadline_s

        def decide(entries: tuple[OuterEntry, ...] | None) -> OuterEntry | None:
            if entries or must_wait:
                return None
            workers = {name: item.workers for name, item in here.items()}
            _check_lanes(num_lanes, workers)
            return OuterBegan(
                recipe_sha256=recipe_sha256,
                dataset_fingerprint=here[self.cluster].dataset_fingerprint,
                inner_steps=self._config.every,
                lane_steps=lane_steps,
                lanes=divided(range(num_lanes), workers),
            )

        began = next(iter(self._log.append(decide) or ()), None)
        assert not isinstance(began, OuterStep)
        if began is not None and began.recipe_sha256 != recipe_sha256:
            raise ConfigError(f"{self.store.url}: another recipe is trained there. Meet in another folder.")
        return began

    def request_lanes(self, state: OuterState) -> None:
        """Request lanes for this cluster, which has none, unless the next outer step is over."""
        if len(self.entries()) <= state.outer_step + 1:
            self.store.put_if_absent(f"requests/{state.outer_step:08d}-{self.cluster}.json", b"{}")

    def put_part(self, part: OuterPart, change: bytes) -> None:
        """Put a part with its change. Raises `DataError` if this cluster put another one for this outer step."""
        self._changes[part.change_sha256] = change
        self.store.put_if_absent(_change_key(part.change_sha256), change)
        key, data = _part_key(part.outer_step, self.cluster), part.to_sealed_json().encode()
        if self.store.put_if_absent(key, data):
            return
        found = self._part(part.outer_step, self.cluster)
        if found is None:
            self.store.put(key, data)
        elif differing := differences(found, part):
            raise DataError(
                f"{key}: this cluster trained outer step {part.outer_step} before and again now, with other results "
                f"({', '.join(differing)}). Its machines differ in their arithmetic, or another process trains as "
                f"cluster '{self.cluster}'."
            )

    def replace_change(self, sha256: str, change: bytes) -> None:
        """Replace a damaged change by the bytes that have its digest."""
        self.store.put(_change_key(sha256), change)
        self.store.delete(_report_key(sha256))

    def change(self, part: OuterPart) -> bytes:
        """Return the quantised change of a part. Raises `DamagedDataError` if it is missing or has another digest."""
        key, problem = _change_key(part.change_sha256), "is missing"
        for reads_left in reversed(range(READS)):
            try:
                change = self.store.get(key)
            except StoreError:
                if reads_left or not self.store.exists(key):
                    continue  # it is missing, or was until now
                raise
            if (sha256 := sha256_of_bytes(change)) == part.change_sha256:
                return change
            problem = f"has the digest {sha256[:12]}…, not that of its name"
        raise DamagedDataError(
            f"{self.store.url}/{key} {problem}: it is the change of cluster '{part.cluster}' in outer step "
            f"{part.outer_step}. Train it again and put it there, on any cluster: assay runs replay RUN --outer "
            f"{part.outer_step} --restore"
        )

    def changes(self, entry: OuterStep) -> list[bytes]:
        """Return the changes of an entry that `poll` returned, and forget all but this cluster's own."""
        found = [self._changes[part.change_sha256] for part in entry.parts]
        own = {part.change_sha256 for part in entry.parts if part.cluster == self.cluster}
        self._changes = {sha256: self._changes[sha256] for sha256 in own}
        return found

    def poll(self, state: OuterState, *, may_close: bool, must_read: bool = False) -> OuterStep | None:
        """Return the entry of the outer step after `state`, or None if it has to be waited for.

        Puts the entry if all expected parts are there, or with `may_close` those that are. Damaged ones are not there.
        If a change that the entry names is damaged, it is waited for; with `must_read`, raises `DamagedDataError`.
        """
        number = state.outer_step + 1
        self._replace_reported()
        entries = self.entries()
        if len(entries) <= number:
            expected = state.expected()
            found = [self._part(number, cluster) for cluster in expected]
            parts = [part for part in found if part is not None and self._is_intact(part, must_read=may_close)]
            if len(parts) < len(expected) and not may_close:
                return None
            entry = self._next_entry(state, parts)
            entries = self._log.append(lambda found: entry if len(found or ()) == number else None) or ()
        step = entries[number]
        assert isinstance(step, OuterStep)
        damaged = [part for part in step.parts if not self._is_intact(part, must_read=must_read)]
        if damaged and must_read:
            raise self._reported[damaged[0].change_sha256]
        return None if damaged else step

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
        """Return a part; None if it is not there, or damaged."""
        key = _part_key(outer_step, cluster)
        try:
            return OuterPart.from_json(self.store.get(key), source=key) if self.store.exists(key) else None
        except DataError:
            return None

    def _is_intact(self, part: OuterPart, *, must_read: bool) -> bool:
        """Return whether a part's change is in memory or can be read; report it if not.

        A reported change is read again once it was replaced, or if it must be.
        """
        sha256 = part.change_sha256
        if sha256 in self._changes:
            return True
        if sha256 in self._reported and not must_read and self.store.exists(_report_key(sha256)):
            return False
        try:
            self._changes[sha256] = self.change(part)
        except DamagedDataError as error:
            self._reported[sha256] = error
            self.store.put_if_absent(_report_key(sha256), b"{}")
            return False
        return True

    def _replace_reported(self) -> None:
        """Replace the changes that were reported as damaged, if this cluster has them in memory."""
        reported = {item.key.rpartition("/")[2] for item in self.store.list("damaged/")}
        for sha256 in reported & {*self._changes}:
            self.replace_change(sha256, self._changes[sha256])


def differences(part: OuterPart, other: OuterPart) -> tuple[str, ...]:
    """Return the fields in which two parts differ, except for the time that they took."""
    fields = [name for name in OuterPart.model_fields if name != "inner_s"]
    return tuple(name for name in fields if getattr(part, name) != getattr(other, name))


def named_parts(entries: Iterable[OuterEntry]) -> list[OuterPart]:
    """Return the parts that entries name, in their order."""
    return [part for entry in entries if isinstance(entry, OuterStep) for part in entry.parts]


def damages(meeting: Meeting, parts: Iterable[OuterPart]) -> Iterator[tuple[OuterPart, DamagedDataError]]:
    """Yield the parts whose changes are damaged."""
    for part in parts:
        try:
            meeting.change(part)
        except DamagedDataError as error:
            yield part, error


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


def _report_key(sha256: str) -> str:
    return f"damaged/{sha256}"


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
