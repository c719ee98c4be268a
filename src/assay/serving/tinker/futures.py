"""Results of requests, waited for in the log: a restart of the server or of a worker loses no future.

The SDK asks for a result until it gets one. A pending result is 408 with the reason; the SDK asks again at once, so a
response is held back for a few seconds.
"""

import anyio
import anyio.to_thread
from starlette.responses import JSONResponse, Response

from assay.serving.api_error import not_found
from assay.serving.openai.app_state import AppState
from assay.serving.sessions.request_log import RequestId, RequestLog, read_request_id
from assay.serving.tinker.training import missing_worker

HOLD_S = 5.0
FIRST_LOOK_S, LAST_LOOK_S = 0.002, 0.05
"""Time between two looks into the store; it grows while a result is pending."""
LOOK_OF_ONE_S = 0.0005
"""All pending futures together look at most this often."""


class FutureWatch:
    """Waits for results."""

    def __init__(self, app: AppState) -> None:
        self._app = app
        self._num_pending = 0

    async def respond(self, name: str, project: str) -> Response:
        """Return the result of a request, or 408 if it is still pending. Raises `ApiError` for an unknown one."""
        request = read_request_id(name)
        if request is None:
            raise not_found("request", name, param="request_id")
        log = await anyio.to_thread.run_sync(self._log_of, request, project)
        self._num_pending += 1
        try:
            with anyio.move_on_after(HOLD_S):
                return await self._wait(log, request)
        finally:
            self._num_pending -= 1
        reason = await anyio.to_thread.run_sync(self._waiting_reason, request, project)
        state = "active" if reason is None else "paused_capacity"
        tree = {"type": "try_again", "request_id": name, "queue_state": state, "queue_state_reason": reason}
        return JSONResponse(tree, 408)

    async def _wait(self, log: RequestLog, request: RequestId) -> Response:
        look_s = FIRST_LOOK_S
        while (result := await anyio.to_thread.run_sync(log.result, request.seq_id)) is None:
            await anyio.sleep(max(look_s, LOOK_OF_ONE_S * self._num_pending))
            look_s = min(1.5 * look_s, LAST_LOOK_S)
        return Response(result.body, media_type=result.content_type)

    def _waiting_reason(self, request: RequestId, project: str) -> str | None:
        reason = self._app.queue.spent_reason(project) or self._app.sessions.waiting_reason(request)
        return reason and " ".join(filter(None, (reason, missing_worker(self._app))))

    def _log_of(self, request: RequestId, project: str) -> RequestLog:
        self._app.sessions.found(request.target.session_id, project)
        log = self._app.sessions.requests(request.target)
        if not log.has_request(request.seq_id):
            raise not_found("request", str(request), param="request_id")
        return log
