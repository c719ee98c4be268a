"""The requests of one model or sampler, by the number that the client gave them, and their results.

    session-data/SESSION/train/0/requests/0000000000000000/007    header, then the body
    session-data/SESSION/train/0/results/0000000000000000/007     header, then the response
    session-data/SESSION/waiting/3-12                             marker: sampler 3 may have request 12

A request is durable before it is acknowledged, and put only if its number is free: a repeat with the same body changes
nothing, and a different body under the same number is refused. So is a result. Therefore a client that lost a response
may send the request again, and two workers that execute the same request cannot both be heard.

Requests of a model are executed in the order of their numbers, whatever order they arrive in, and a missing number
is waited for. Requests of a sampler are independent of each other; they have markers, so that a worker finds them
without reading every sampler.
"""

import json
import re
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from assay.base.digest import canonical_json, sha256_of_bytes
from assay.base.errors import AssayError
from assay.store.logs.entry import changed
from assay.store.objects import ObjectStore

Role = Literal["train", "sample"]
RequestKind = Literal[
    "create_model",
    "load_weights",
    "forward_backward",
    "optim_step",
    "save_weights",
    "save_weights_for_sampler",
    "sample",
]
ErrorCategory = Literal["user", "server"]
JSON, PROTOBUF = "application/json", "application/x-protobuf"
MAX_SEQ_ID = 2**63 - 1
_ID = re.compile(r"(session-[0-9a-f]{24}):(train|sample):(0|[1-9][0-9]{0,8})(?::(0|[1-9][0-9]{0,18}))?")


class TargetId(NamedTuple):
    """A model or sampler of a session."""

    session_id: str
    role: Role
    number: int

    def __str__(self) -> str:
        return f"{self.session_id}:{self.role}:{self.number}"


class RequestId(NamedTuple):
    """A request, as clients name it to get its result."""

    target: TargetId
    seq_id: int

    def __str__(self) -> str:
        return f"{self.target}:{self.seq_id}"


def read_target_id(text: str) -> TargetId | None:
    """Parse `SESSION:train:0` or `SESSION:sample:0`; None for other text."""
    named = _ID.fullmatch(text)
    if named is None or named[4] is not None:
        return None
    return TargetId(named[1], "train" if named[2] == "train" else "sample", int(named[3]))


def read_request_id(text: str) -> RequestId | None:
    """Parse `SESSION:train:0:7`; None for other text."""
    target = read_target_id(text.rpartition(":")[0])
    return RequestId(target, int(text.rpartition(":")[2])) if target and _ID.fullmatch(text) else None


class Request(NamedTuple):
    """An acknowledged request."""

    seq_id: int
    kind: RequestKind
    content_type: str
    at_s: float
    """Time of the acknowledgement."""
    sha256: str
    """Digest of the body."""
    body: bytes

    def json(self) -> dict[str, Any]:
        """Return the body as JSON."""
        tree: dict[str, Any] = json.loads(self.body)
        return tree


class Result(NamedTuple):
    """The response to a request."""

    content_type: str
    body: bytes

    @classmethod
    def of_json(cls, tree: dict[str, Any]) -> "Result":
        return cls(JSON, canonical_json(tree).encode())

    @classmethod
    def of_error(cls, message: str, category: ErrorCategory) -> "Result":
        """Return the final error of a request: the client does not send it again."""
        return cls.of_json({"error": message, "category": category})

    @property
    def is_error(self) -> bool:
        """Whether the request had no effect."""
        return self.content_type == JSON and "error" in json.loads(self.body)


class ChangedRequestError(AssayError):
    """The number belongs to a request with a different body."""


class RequestLog:
    """Requests and results of one model or sampler. Any number of processes may use it."""

    def __init__(self, store: ObjectStore, target: TargetId) -> None:
        self.target = target
        self._store = store
        self._folder = f"{data_folder(target.session_id)}/{target.role}/{target.number}"

    def append(self, seq_id: int, kind: RequestKind, content_type: str, body: bytes, *, now_s: float) -> bool:
        """Make a request durable; return False if it was. Raises `ChangedRequestError`."""
        sha256, key = sha256_of_bytes(body), self._key("requests", seq_id)
        header = {"kind": kind, "content_type": content_type, "at_s": now_s}
        if not self._store.exists(key):
            if self.target.role == "sample":
                self._store.put(self._waiting_key(seq_id), b"")
            if self._store.put_if_absent(key, with_header(header, body)):
                return True
        known = self.request(seq_id)
        assert known is not None
        if (known.kind, known.sha256) != (kind, sha256):
            raise ChangedRequestError(
                f"Request {seq_id} of {self.target} was acknowledged as {known.kind} with another body. A number is "
                "used once; send a new request under the next one."
            )
        return False

    def request(self, seq_id: int) -> Request | None:
        """Return a request, or None if it has not arrived."""
        found = read_with_header(self._store, self._key("requests", seq_id))
        return None if found is None else Request(seq_id=seq_id, body=found[1], **found[0])

    def result(self, seq_id: int) -> Result | None:
        """Return the result of a request, or None while there is none."""
        found = read_with_header(self._store, self._key("results", seq_id))
        return None if found is None else Result(found[0]["content_type"], found[1])

    def put_result(self, seq_id: int, result: Result) -> bool:
        """Make a result durable and visible; return False if there was one, which then stands."""
        data = with_header({"content_type": result.content_type}, result.body)
        is_first = self._store.put_if_absent(self._key("results", seq_id), data)
        if self.target.role == "sample":
            self._store.delete(self._waiting_key(seq_id))
        return is_first

    def has_request(self, seq_id: int) -> bool:
        return self._store.exists(self._key("requests", seq_id))

    def has_result(self, seq_id: int) -> bool:
        return self._store.exists(self._key("results", seq_id))

    def missing_before(self, seq_id: int) -> int | None:
        """Return the number of the last request before this one that has not arrived, or None if none is missing."""
        if self.target.role == "sample":
            return None
        for number in range(seq_id - 1, -1, -1):
            if self.has_result(number):
                return None
            if not self.has_request(number):
                return number
        return None

    def seq_ids(self, kind: Literal["requests", "results"] = "requests") -> Iterator[int]:
        """Yield the numbers of all requests or results, in no particular order."""
        for item in self._store.list(f"{self._folder}/{kind}/"):
            _, high, low = item.key.rsplit("/", 2)
            yield int(high + low)

    def _key(self, kind: str, seq_id: int) -> str:
        digits = f"{seq_id:019d}"
        return f"{self._folder}/{kind}/{digits[:-3]}/{digits[-3:]}"

    def _waiting_key(self, seq_id: int) -> str:
        return f"{data_folder(self.target.session_id)}/waiting/{self.target.number}-{seq_id}"


def waiting_samples(store: ObjectStore, session_id: str) -> Iterator[RequestId]:
    """Yield requests of a session's samplers without a result. A request that is not there yet may be among them."""
    for item in store.list(f"{data_folder(session_id)}/waiting/"):
        index, _, seq_id = item.key.rpartition("/")[2].partition("-")
        yield RequestId(TargetId(session_id, "sample", int(index)), int(seq_id))


def data_folder(session_id: str) -> str:
    """Return the folder of a session's requests, results and leases; workers put weights there, too."""
    return f"session-data/{session_id}"


def with_header(header: dict[str, Any], body: bytes) -> bytes:
    """Return an object: a line of JSON with the digest of the body, then the body."""
    return canonical_json({**header, "sha256": sha256_of_bytes(body)}).encode() + b"\n" + body


def read_with_header(store: ObjectStore, key: str) -> tuple[dict[str, Any], bytes] | None:
    """Return header and body of such an object, or None if there is none. Raises `DamagedDataError`."""
    if not store.exists(key):
        return None
    head, _, body = store.get(key).partition(b"\n")
    try:
        header: dict[str, Any] = json.loads(head)
        digest = header["sha256"]
    except (ValueError, TypeError, KeyError) as error:
        raise changed(key, f"its header cannot be read ({error})") from error
    if sha256_of_bytes(body) != digest:
        raise changed(key, "its body has not the digest that it was put with")
    return header, body
