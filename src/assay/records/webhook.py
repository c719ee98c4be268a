"""Log entries of a webhook and of its messages.

The secret signs messages, so it is stored in plain text: anyone who can read the store can sign.
"""

from typing import Literal

from assay.base.names import Name
from assay.records.log_entry import Claimed, classes_by_type
from assay.records.record import Record


class WebhookCreated(Record):
    """A client created a webhook."""

    type: Literal["created"] = "created"
    webhook_id: str
    project: Name
    name: str
    """For people."""
    url: str
    event_types: tuple[str, ...]
    secret: str
    """`whsec_` and the Base64 of the key that messages are signed with."""
    at_s: float
    """Seconds since the Unix epoch, as in all entries."""
    request_sha256: str
    """Digest of the request, to recognize a retry."""


class WebhookUpdated(Record):
    """The webhook was changed to these values."""

    type: Literal["updated"] = "updated"
    name: str
    url: str
    event_types: tuple[str, ...]
    at_s: float


class WebhookSecretRotated(Record):
    """The signing secret was replaced."""

    type: Literal["rotated"] = "rotated"
    secret: str
    old_until_s: float
    """Until then messages carry signatures of both secrets."""
    at_s: float


class WebhookClaimed(Claimed):
    """A retry of the creating request returned this webhook with a new secret."""


class WebhookDeleted(Record):
    """The webhook was deleted."""

    type: Literal["deleted"] = "deleted"
    at_s: float


WebhookEntry = WebhookCreated | WebhookUpdated | WebhookSecretRotated | WebhookClaimed | WebhookDeleted

WEBHOOK_ENTRIES = classes_by_type(WebhookEntry)


class MessageDue(Record):
    """A message is due for delivery."""

    type: Literal["due"] = "due"
    message_id: str
    """The `webhook-id` of every delivery attempt."""
    webhook_id: str
    event_type: str
    body: str
    """The exact body."""
    at_s: float


class MessageTried(Record):
    """A delivery attempt."""

    type: Literal["tried"] = "tried"
    at_s: float
    response: str
    """HTTP status of the response, or why there was none."""
    outcome: Literal["delivered", "again", "given_up"]


MessageEntry = MessageDue | MessageTried

MESSAGE_ENTRIES = classes_by_type(MessageEntry)
