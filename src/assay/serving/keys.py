"""API keys: 256 random bits, shown once. The store keeps only their SHA-256, owner and scopes.

key/ID/log/00000000.json     the key, later its revocation
secret/SHA256                the key's id, so a secret is found by digest without comparing secrets

The owner of a secret never changes and is cached; revocation is checked at each request, by one check for a new
log entry.
"""

import hashlib
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from assay.base.clock import Clock
from assay.records.api_key import KEY_ENTRIES, KeyCreated, KeyEntry, KeyRevoked, KeyScope
from assay.serving.ids import new_id
from assay.serving.repository import ResourceRepository, ResourceState, resource_log
from assay.store.objects import ObjectStore

PREFIX = "sk-assay-"


@dataclass(frozen=True)
class KeyState(ResourceState[KeyCreated]):
    """State of a key, folded from its log."""

    revoked: KeyRevoked | None = None

    def opens(self, now_s: float) -> bool:
        """Return whether the key is neither revoked nor expired."""
        expires_s = self.created.expires_s
        return self.revoked is None and (expires_s is None or now_s < expires_s)

    def changes(self, entry: KeyEntry) -> dict[str, Any]:
        return {"revoked": self.revoked or entry}


class NewKey(NamedTuple):
    """A new key with its secret."""

    secret: str
    """Returned once, at creation."""
    created: KeyCreated


class KeyRepository(ResourceRepository[KeyEntry, KeyState]):
    """API keys in an object store."""

    id_kind = "key"
    log_kind = resource_log("key's log", KEY_ENTRIES, KeyState)
    title, param, id_field = "key", "key_id", "key_id"

    def __init__(self, store: ObjectStore, clock: Clock) -> None:
        super().__init__(store, clock)
        self._any_exist = False
        self._known: dict[str, str] = {}
        """Store key of a secret -> key id."""

    def any_exist(self) -> bool:
        """Return whether a key was ever created; from then on requests need one."""
        # Check both, since one may have been lost: without keys, requests are not authenticated.
        if not self._any_exist:
            self._any_exist = not self.is_empty() or any(self.store.list("secret/", limit=1))
        return self._any_exist

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
        self.put(created)
        self.store.put(_secret_key(secret), created.key_id.encode())
        return NewKey(secret, created)

    def opening(self, secret: str) -> KeyCreated | None:
        """Return the key of a secret if it is valid."""
        where = _secret_key(secret)
        if where not in self._known:
            if not secret.startswith(PREFIX) or not self.store.exists(where):
                return None
            self._known[where] = self.store.get(where).decode()
        state = self.state(self._known[where])
        return state.created if state is not None and state.opens(self._clock.now_s()) else None

    def all(self) -> Iterator[KeyState]:
        """Yield keys from oldest to newest, revoked ones included."""
        return (state for _, state in self.states(self.ids()))

    def revoke(self, key_id: str, *, by: str = "") -> KeyState | None:
        """Revoke a key; None if there is no such key."""
        if self.state(key_id) is None:
            return None
        revoked = KeyRevoked(at_s=self._clock.now_s(), by=by)
        return self.change(key_id, lambda state: None if state.revoked else revoked)


def _secret_key(secret: str) -> str:
    return f"secret/{_sha256(secret)}"


def _sha256(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
