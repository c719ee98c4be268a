"""Keys: 256 random bits that are shown once; what is kept is their SHA-256, whose they are, and what they open.

key/ID/log/00000000.json     the key, and later that it was revoked
secret/SHA256                its id: found by the digest of what a client sends, so nothing is compared in turn

Whose a secret is never changes and stays in memory; whether it still opens is looked up at each request: that
is one look at whether the key's log has gone on.
"""

import hashlib
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from assay.base.clock import Clock
from assay.records.api_key import KEY_ENTRIES, KeyCreated, KeyEntry, KeyRevoked, KeyScope
from assay.serving.ids import new_id
from assay.serving.job_repository import Shelf
from assay.store.logs.entry_log import LogKind
from assay.store.objects import ObjectStore

PREFIX = "sk-assay-"


@dataclass(frozen=True)
class KeyState:
    """A key as its entries say."""

    created: KeyCreated
    revoked: KeyRevoked | None = None

    def opens(self, now_s: float) -> bool:
        """Whether it was neither revoked nor has expired."""
        expires_s = self.created.expires_s
        return self.revoked is None and (expires_s is None or now_s < expires_s)


class NewKey(NamedTuple):
    """A key as whoever made it sees it."""

    secret: str
    """In this answer only."""
    created: KeyCreated


def fold_key(state: KeyState | None, entry: KeyEntry) -> KeyState:
    """The state behind one more entry."""
    if isinstance(entry, KeyCreated):
        assert state is None, "a key is created once"
        return KeyState(entry)
    assert state is not None
    return replace(state, revoked=state.revoked or entry)


KEY_LOG: LogKind[KeyEntry, KeyState] = LogKind("key's log", KEY_ENTRIES, fold_key)


class KeyShelf:
    """All keys of a store."""

    def __init__(self, store: ObjectStore, clock: Clock) -> None:
        self.shelf: Shelf[KeyEntry, KeyState] = Shelf(store, "key", KEY_LOG, is_worked_at=False)
        self._store = store
        self._clock = clock
        self._are_there = False
        self._known: dict[str, str] = {}
        """Where a secret's key is named -> the key's id."""

    def are_there(self) -> bool:
        """Whether any was ever made: from then on nobody asks without one."""
        # Both are looked for, since one may have been lost: without keys everybody here is answered.
        if not self._are_there:
            self._are_there = not self.shelf.is_empty() or any(self._store.list("secret/", limit=1))
        return self._are_there

    def make(
        self,
        *,
        project: str,
        name: str,
        scopes: Sequence[KeyScope],
        lives_s: float | None,
        service_account: str | None = None,
        by: str = "",
        request_sha256: str = "",
    ) -> NewKey:
        """A new one."""
        now_s, secret = self._clock.now_s(), PREFIX + secrets.token_hex(32)
        created = KeyCreated(
            key_id=new_id("key", now_s),
            project=project,
            name=name,
            at_s=now_s,
            secret_sha256=_sha256(secret),
            hint=secret[-4:],
            scopes=tuple(scopes),
            expires_s=None if lives_s is None else now_s + lives_s,
            service_account=service_account,
            by=by,
            request_sha256=request_sha256,
        )
        self.shelf.begin(created.key_id, created)
        self._store.put(_secret_key(secret), created.key_id.encode())
        return NewKey(secret, created)

    def opening(self, secret: str) -> KeyCreated | None:
        """The key that a client sent, if it opens anything."""
        where = _secret_key(secret)
        if where not in self._known:
            if not secret.startswith(PREFIX) or not self._store.exists(where):
                return None
            self._known[where] = self._store.get(where).decode()
        state = self.shelf.state(self._known[where])
        return state.created if state is not None and state.opens(self._clock.now_s()) else None

    def all(self) -> Iterator[KeyState]:
        """Every key that was ever made, the oldest first."""
        return (state for _, state in self.shelf.states(self.shelf.ids()))

    def revoke(self, key_id: str, *, by: str = "") -> KeyState | None:
        """It opens nothing any more; None where there is no such key."""
        if self.shelf.state(key_id) is None:
            return None
        revoked = KeyRevoked(at_s=self._clock.now_s(), by=by)
        return self.shelf.log(key_id).append(lambda state: None if state is None or state.revoked else revoked)


def _secret_key(secret: str) -> str:
    return f"secret/{_sha256(secret)}"


def _sha256(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
