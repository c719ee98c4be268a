"""Uploads: a file sent in parts, which are joined when the upload is completed.

    upload/ID/part/PART      bytes of a part, written first
    upload/ID/log/...        the upload, its parts and its outcome
    open/upload/ID           marker, as long as parts may exist

The file's id follows from the upload's id, so completing twice gives one file. A part that was sent again after a lost
response is a second part; the client lists the parts that count, in order, when it completes.
"""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from assay.base.clock import Clock
from assay.records.chunked_upload import (
    UPLOAD_ENTRIES,
    PartAdded,
    UploadCancelled,
    UploadClaimed,
    UploadCompleted,
    UploadCreated,
    UploadEntry,
)
from assay.records.uploaded_file import FileCreated
from assay.serving.api_error import ApiError
from assay.serving.blob_references import STALE_UPLOAD_S, ByteSink, stored_sha256
from assay.serving.files import BLOCK_BYTES, FileRepository
from assay.serving.idempotency_keys import IdempotentRepository
from assay.serving.ids import created_s, derived_id, new_id
from assay.serving.repository import ResourceState, resource_log
from assay.store.objects import ObjectStore

LIVES_S = 3600.0
"""How long parts are accepted, as in the hosted API."""
UploadStatus = Literal["pending", "completed", "cancelled", "expired"]


@dataclass(frozen=True)
class UploadState(ResourceState[UploadCreated]):
    """State of an upload, folded from its log."""

    parts: tuple[PartAdded, ...] = ()
    completed: UploadCompleted | None = None
    cancelled: UploadCancelled | None = None

    def status(self, now_s: float) -> UploadStatus:
        if self.completed is not None:
            return "completed"
        if self.cancelled is not None:
            return "cancelled"
        return "expired" if now_s >= self.created.expires_s else "pending"

    def changes(self, entry: UploadEntry) -> dict[str, Any]:
        if isinstance(entry, PartAdded):
            return {"parts": (*self.parts, entry)}
        return {entry.type: entry}


class UploadRepository(IdempotentRepository[UploadEntry, UploadState]):
    """Uploads in an object store."""

    id_kind = "upload"
    log_kind = resource_log("upload's log", UPLOAD_ENTRIES, UploadState)
    title, param, id_field = "upload", "upload_id", "upload_id"
    tracks_open = True
    claimed = UploadClaimed

    def __init__(self, store: ObjectStore, files: FileRepository, clock: Clock) -> None:
        super().__init__(store, clock)
        self._files = files

    def part_sink(self, upload_id: str, part_id: str) -> ByteSink:
        """Open a sink for a part; `add` makes it one."""
        self.open(upload_id)
        return ByteSink(self.store, _part_key(upload_id, part_id))

    def add(self, upload_id: str, part: PartAdded) -> None:
        """Add a part whose bytes are stored."""

        def decide(now: UploadState) -> UploadEntry:
            self._require_pending(now)
            return part

        try:
            self.change(upload_id, decide)
        except ApiError:
            self.store.delete(_part_key(upload_id, part.part_id))
            raise

    def complete(
        self, upload_id: str, part_ids: Sequence[str], md5: str | None
    ) -> tuple[UploadState, FileCreated | None]:
        """Join the parts in this order; idempotent. Return the upload and its file, None if it was deleted since.

        Raises `ApiError` if it was completed with other parts.
        """
        state = self.state(upload_id)
        assert state is not None, f"{upload_id} was found before"
        file_id = derived_id("file", upload_id)
        was_completed = state.completed is not None
        if not was_completed:
            self._require_pending(state)
            _check_parts(state, part_ids)
            joined = self._joined(state, part_ids, md5, file_id)
            # A file from before a crash may have been joined from other parts.
            if self._files.put(joined).created.sha256 != joined.sha256:
                raise _other_parts(upload_id)
            completed = UploadCompleted(at_s=self._clock.now_s(), file_id=file_id, part_ids=tuple(part_ids))
            state = self.change(upload_id, lambda now: None if now.completed or now.cancelled else completed)
            if state.completed is None:  # cancelled concurrently
                self._files.remove(file_id)
                self._require_pending(state)
            self._drop_parts(upload_id)
        assert state.completed is not None
        if state.completed.part_ids != tuple(part_ids):
            raise _other_parts(upload_id)
        found = self._files.find(file_id, state.created.project)
        file = None if found is None else found.created
        if was_completed and md5 is not None and file is not None:
            whole = hashlib.md5(usedforsecurity=False)
            for block in self._files.blocks(file_id, 0, file.num_bytes):
                whole.update(block)
            _check_md5(whole.hexdigest(), md5)
        return state, file

    def cancel(self, upload_id: str) -> UploadState:
        """Cancel the upload; idempotent."""
        cancelled = UploadCancelled(at_s=self._clock.now_s())

        def decide(now: UploadState) -> UploadEntry | None:
            if now.cancelled is not None:
                return None
            self._require_pending(now)
            return cancelled

        state = self.change(upload_id, decide)
        self._end(upload_id)
        return state

    def sweep(self) -> None:
        """Delete parts of ended uploads a day after they expired."""
        now_s = self._clock.now_s()
        for upload_id in self.open_ids():
            if created_s(upload_id) + LIVES_S + STALE_UPLOAD_S > now_s:
                continue
            state = self.state(upload_id)
            if state is None or state.completed is not None:
                self._drop_parts(upload_id)
            else:
                self._end(upload_id)

    def _end(self, upload_id: str) -> None:
        """Drop the parts, and a file that was created before an interruption."""
        file_id = derived_id("file", upload_id)
        if self._files.state(file_id) is not None:
            self._files.remove(file_id)
        self._drop_parts(upload_id)

    def _joined(self, state: UploadState, part_ids: Sequence[str], md5: str | None, file_id: str) -> FileCreated:
        """Join the parts to a file that is not stored yet."""
        created, now_s = state.created, self._clock.now_s()
        whole, name = hashlib.md5(usedforsecurity=False), new_id("file", now_s)
        sink = self._files.sink(name)
        try:
            digests = {part.part_id: part.sha256 for part in state.parts}
            for part_id in part_ids:
                key = _part_key(created.upload_id, part_id)
                if stored_sha256(self.store, key) != digests[part_id]:
                    raise ApiError(
                        f"Part {part_id} is damaged: its stored bytes differ from those that were sent. "
                        "Cancel this upload and create a new one.",
                        param="part_ids",
                        code="file_damaged",
                    )
                with self.store.open_reader(key) as reader:
                    while block := reader.read(BLOCK_BYTES):
                        whole.update(block)
                        sink.write(block)
            _check_md5(whole.hexdigest(), md5)
        except BaseException as error:
            sink.abort(error)
            raise
        sink.finish()
        return FileCreated(
            file_id=file_id,
            project=created.project,
            at_s=now_s,
            filename=created.filename,
            purpose=created.purpose,
            num_bytes=sink.num_bytes,
            sha256=sink.sha256,
            expires_s=None if created.file_lives_s is None else now_s + created.file_lives_s,
            content=name,
        )

    def _drop_parts(self, upload_id: str) -> None:
        for item in [*self.store.list(f"upload/{upload_id}/part/")]:
            self.store.delete(item.key)
        self.close(upload_id)

    def _require_pending(self, state: UploadState) -> None:
        if (status := state.status(self._clock.now_s())) != "pending":
            raise ApiError(
                f"Upload {state.created.upload_id} is {status}. Create a new one.", code="invalid_upload_state"
            )


def _check_parts(state: UploadState, part_ids: Sequence[str]) -> None:
    """Raise `ApiError` if the parts do not make the announced file."""
    sizes = {part.part_id: part.num_bytes for part in state.parts}
    if unknown := [id_ for id_ in part_ids if id_ not in sizes]:
        raise _unusable(f"Upload {state.created.upload_id} has no part {unknown[0]!r:.60}.")
    if twice := [part_id for part_id, number in Counter(part_ids).items() if number > 1]:
        raise _unusable(f"Part {twice[0]} is listed twice. List each part once, in file order.")
    num_bytes = sum(sizes[id_] for id_ in part_ids)
    if num_bytes != state.created.num_bytes:
        raise _unusable(
            f"These {len(part_ids)} parts have {num_bytes:,} bytes, and the upload was created for "
            f"{state.created.num_bytes:,}: a part is missing, or one too many is listed."
        )


def _check_md5(found: str, md5: str | None) -> None:
    if md5 is not None and md5.lower() != found:
        raise ApiError(
            f"The parts' md5 is {found}, not {md5:.40}: a part is damaged, or the order is wrong. Upload it again.",
            param="md5",
            code="md5_mismatch",
        )


def _other_parts(upload_id: str) -> ApiError:
    return _unusable(f"Upload {upload_id} was completed with other parts, or in another order. Create a new one.")


def _unusable(message: str) -> ApiError:
    return ApiError(message, param="part_ids", code="invalid_parts")


def _part_key(upload_id: str, part_id: str) -> str:
    return f"upload/{upload_id}/part/{part_id}"
