"""Delivers webhook messages: one worker at a time, by a lease, and one message at a time per webhook.

Delivery is at least once. If a worker dies between a delivery and its log entry, the message is sent again with
the
same `webhook-id`.
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
"""Webhooks served concurrently, so that an unresponsive one does not delay others."""


class _Delivery(NamedTuple):
    response: str
    is_delivered: bool = False
    can_retry: bool = True


class WebhookDelivery:
    """Delivers the messages of a store."""

    def __init__(
        self, store: ObjectStore, clock: Clock, *, name: str, allowed_hosts: Sequence[str], resolve: Resolve = resolved
    ) -> None:
        """`allowed_hosts`: hosts that may have private addresses."""
        self._store = store
        self._clock = clock
        self._name = name
        self._allowed_hosts = allowed_hosts
        self._resolve = resolve
        self._outbox = Outbox(store, clock)
        self._busy: set[str] = set()
        self._lock = threading.Lock()

    def run(self, is_over: threading.Event, notify: Callable[[str], None]) -> None:
        """Deliver until stopped."""
        watch = LeaseWatch(self._store, self._clock)
        while not is_over.wait(LOOK_S):
            try:
                lease = watch.take(LEASE, worker=self._name, term_s=TERM_S)
                if lease is None:
                    continue
                with holding(lease), ThreadPoolExecutor(AT_ONCE, thread_name_prefix="courier") as pool:
                    while lease.is_newest() and not is_over.wait(LOOK_S):
                        self.poll(pool)
            except StoreError as error:
                notify(f"webhooks: {error} Retrying.")

    def has_something_due(self) -> bool:
        return any(True for _ in self._outbox.due())

    def poll(self, pool: Executor) -> None:
        """Send due messages to webhooks without a delivery in progress."""
        for message in self._outbox.due():
            webhook_id = message.due.webhook_id
            with self._lock:
                if webhook_id in self._busy:
                    continue
                self._busy.add(webhook_id)
            pool.submit(self._send, message)

    def _send(self, message: MessageState) -> None:
        try:
            tried = self._deliver(message)
            self._outbox.record_attempt(
                message, tried.response, is_delivered=tried.is_delivered, can_retry=tried.can_retry
            )
        except AssayError:
            pass  # not logged, so it is retried
        finally:
            with self._lock:
                self._busy.discard(message.due.webhook_id)

    def _deliver(self, message: MessageState) -> _Delivery:
        webhook = self._outbox.webhooks.logs.state(message.due.webhook_id)
        if webhook is None or webhook.is_deleted:
            return _Delivery("the webhook was deleted", can_retry=False)
        now_s, due = self._clock.now_s(), message.due
        headers = signed_headers(due.message_id, due.body, webhook.secrets_at(now_s), now_s=now_s)
        try:
            status = post(webhook.url, due.body, headers, self._allowed_hosts, self._resolve)
        except (AddressError, NotDeliveredError) as error:
            return _Delivery(str(error))
        return _Delivery(f"status {status}", is_delivered=200 <= status < 300)
