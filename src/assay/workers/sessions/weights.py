"""Stored states of a session's model: objects that hold a digest and are put once.

    session-data/ID/train/0/commits/0000000000000000120   before request 120: written by the worker, the newest are kept
    session-data/ID/train/0/training/0000000000000000119  weights and moments that request 119 saved
    session-data/ID/train/0/sampler/0000000000000000117   weights that request 117 saved under a name
    session-data/ID/train/0/captured/0000000000000000115  weights of a sampler without a name
    session-data/ID/train/0/used/115                      number of the newest captured ones when they were sampled from

A state is a function of the requests before it, so it does not matter which worker wrote it.
"""

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

from assay.base.errors import DamagedDataError
from assay.records.session import SessionCheckpoint
from assay.serving.sessions.request_log import MAX_SEQ_ID, TargetId, data_folder, read_with_header, with_header
from assay.serving.sessions.sessions import CheckpointPath, SessionRepository, read_checkpoint_path
from assay.store.objects import ObjectStore

StateKind = Literal["commits", "training", "sampler", "captured"]
KEEP: Mapping[StateKind, int] = {"commits": 2, "captured": 16}
"""How many states are kept: of commits the newest, since a restart begins with the second if the first is damaged; of
captured ones those that were captured or sampled from last."""


class StoredState(NamedTuple):
    """A state of the model."""

    next_seq_id: int
    """The first request that it does not include."""
    data: bytes
    num_steps: int = 0
    """Number of updates before it, those that failed included."""


class ModelStates:
    """The states of one model."""

    def __init__(self, store: ObjectStore, model: TargetId) -> None:
        self._store = store
        self._folder = f"{data_folder(model.session_id)}/train/{model.number}"

    def put(self, kind: StateKind, number: int, state: StoredState) -> None:
        """Make a state durable; nothing changes if it is."""
        header = {"next_seq_id": state.next_seq_id, "num_steps": state.num_steps}
        self._store.put_if_absent(self.key(kind, number), with_header(header, state.data))
        if kind in KEEP:
            last_uses = self._last_uses() if kind == "captured" else {}
            by_use = sorted(self.numbers(kind), key=lambda number: last_uses.get(number, number))
            for least_used in by_use[: -KEEP[kind]]:
                self._store.delete(self.key(kind, least_used))
                if least_used in last_uses:
                    self._store.delete(self._use_key(least_used))

    def note_use(self, number: int) -> None:
        """Keep captured weights as if they were captured now."""
        newest = self.numbers("captured")[-1]
        if self._last_uses().get(number, number) != newest:
            self._store.put(self._use_key(number), str(newest).encode())

    def _last_uses(self) -> dict[int, int]:
        keys = [item.key for item in self._store.list(self._use_key(""))]
        return {int(key.rpartition("/")[2]): int(self._store.get(key)) for key in keys}

    def _use_key(self, number: int | str) -> str:
        return f"{self._folder}/used/{number}"

    def get(self, kind: StateKind, number: int) -> StoredState | None:
        """Return a state, or None if there is none. Raises `DamagedDataError`."""
        found = read_with_header(self._store, self.key(kind, number))
        return None if found is None else StoredState(found[0]["next_seq_id"], found[1], found[0]["num_steps"])

    def has(self, kind: StateKind, number: int) -> bool:
        return self._store.exists(self.key(kind, number))

    def newest(self, notify: Callable[[str], None], *, before: int = MAX_SEQ_ID) -> StoredState | None:
        """Return the newest intact state with moments that does not include request `before`, or None; `notify`
        receives what is wrong with newer ones."""
        kinds: tuple[StateKind, ...] = ("commits", "training")
        found = [(number, kind) for kind in kinds for number in self.numbers(kind)]
        for number, kind in sorted(found, reverse=True):
            try:
                state = self.get(kind, number)
            except DamagedDataError as error:
                notify(f"{error} An earlier state is used, and more requests are executed again.")
                continue
            if state is not None and state.next_seq_id <= before:
                return state
        return None

    def numbers(self, kind: StateKind) -> list[int]:
        """Return the numbers of all states of a kind, sorted."""
        return sorted(int(item.key.rpartition("/")[2]) for item in self._store.list(f"{self._folder}/{kind}/"))

    def key(self, kind: StateKind, number: int) -> str:
        """Return the name of a state's object."""
        return f"{self._folder}/{kind}/{number:019d}"


class SavedWeights(NamedTuple):
    """Weights that a client saved under a name."""

    path: CheckpointPath
    checkpoint: SessionCheckpoint
    state: StoredState


def saved_weights(sessions: SessionRepository, name: str) -> SavedWeights | None:
    """Return the weights at a path `tinker://...`, or None if there are none."""
    path = read_checkpoint_path(name)
    session = None if path is None else sessions.state(path.model.session_id)
    checkpoint = None if session is None or path is None else session.checkpoint(path)
    if path is None or checkpoint is None:
        return None
    state = ModelStates(sessions.store, path.model).get(path.checkpoint_type, checkpoint.seq_id)
    return None if state is None else SavedWeights(path, checkpoint, state)
