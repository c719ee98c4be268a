"""Brings messages to webhooks: the worker that has the lease does, one message at a time to each webhook.

A message is sent at least once: whoever dies between a try and its entry has it tried again, under the same
`webhook-id`.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import NamedTuple

from assay.base.clock import Clock
from assay.base.errors import AssayError, StoreError
from assay.serving.webhooks.outbox import MessageState, Outbox
from assay.serving.webhooks.post import AddressError, NotDeliveredError, Resolve, post, resolved, signed_headers
from assay.store.leases import LeaseWatch, holding
from assay.store.objects import ObjectStore

LEASE = "courier"
TERM_S = 20.0
LOOK_S = 1.0
AT_ONCE = 8
"""Webhooks that are sent to at a time: one that does not answer keeps no other waiting."""


class _Try(NamedTuple):
    said: str
    is_delivered: bool = False
    is_wanted: bool = True


class Courier:
    """One of a store's."""

    def __init__(
        self,
        store: ObjectStore,
        clock: Clock,
        *,
        name: str,
        listed: Sequence[str],
        resolve: Resolve = resolved,
    ) -> None:
        """`listed`: hosts that are sent to though they are not public."""
        self._store = store
        self._clock = clock
        self._name = name
        self._listed = listed
        self._resolve = resolve
        self._outbox = Outbox(store, clock)
        self._busy: set[str] = set()
        self._lock = threading.Lock()

    def run(self, is_over: threading.Event, say: Callable[[str], None]) -> None:
        """Until told to stop."""
        watch = LeaseWatch(self._store, self._clock)
        while not is_over.wait(LOOK_S):
            try:
                lease = watch.take(LEASE, worker=self._name, term_s=TERM_S)
                if lease is None:
                    continue
                with holding(lease), ThreadPoolExecutor(AT_ONCE, thread_name_prefix="courier") as pool:
                    while lease.is_newest() and not is_over.wait(LOOK_S):
                        self.look(pool)
            except StoreError as error:
                say(f"webhooks: {error} It is asked again.")

    def has_something_due(self) -> bool:
        """Whether a message is to be sent now."""
        return any(True for _ in self._outbox.due())

    def look(self, pool: Executor) -> None:
        """Send what is due, to webhooks to which nothing is being sent."""
        for message in self._outbox.due():
            webhook_id = message.due.webhook_id
            with self._lock:
                if webhook_id in self._busy:
                    continue
                self._busy.add(webhook_id)
            pool.submit(self._send, message)

    def _send(self, message: MessageState) -> None:
        try:
            tried = self._tried(message)
            self._outbox.tried(message, tried.said, is_delivered=tried.is_delivered, is_wanted=tried.is_wanted)
        except AssayError:
            pass  # it could not be written down, so it is tried again
        finally:
            with self._lock:
                self._busy.discard(message.due.webhook_id)

    def _tried(self, message: MessageState) -> _Try:
        webhook = self._outbox.webhooks.shelf.state(message.due.webhook_id)
        if webhook is None or webhook.is_deleted:
            return _Try("the webhook was deleted", is_wanted=False)
        now_s, due = self._clock.now_s(), message.due
        headers = signed_headers(due.message_id, due.body, webhook.secrets_at(now_s), now_s=now_s)
        try:
            status = post(webhook.url, due.body, headers, self._listed, self._resolve)
        except (AddressError, NotDeliveredError) as error:
            return _Try(str(error))
        return _Try(f"status {status}", is_delivered=200 <= status < 300)
