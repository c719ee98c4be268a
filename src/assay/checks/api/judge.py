"""Verdicts on a server: a loop with faults is compared with the same loop undisturbed.

held       the client saw what it sees undisturbed
lost       it saw what a loop sees that leaves this operation out
doubled    it saw what a loop sees that executes this operation twice
wrong      it saw something else
error      it got an error
stuck      the loop did not end in time
not tried  the loop sends no such request, or the server does not serve it
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any, NamedTuple

from assay.base.errors import ConfigError
from assay.checks.api.client import LoopClient
from assay.checks.api.differences import NOISE_FACTOR, ROUNDING, SAME_SUM, UndisturbedLoop, distance
from assay.checks.api.proxy import FaultProxy, RequestFault, proxy_before
from assay.checks.api.server import JOBS

REQUESTS: Mapping[str, tuple[str, ...]] = {
    "sft": ("create_model", "forward_backward", "optim_step", "save_weights", "load_weights", "retrieve_future"),
    "rl": ("save_weights_for_sampler", "asample", "forward_backward", "optim_step", "retrieve_future"),
    "dpo": ("forward_backward", "optim_step", "retrieve_future"),
    JOBS: ("files", "jobs", "events", "completions", "pause", "resume", "cancel"),
}
"""Loop -> requests that faults strike, by the last part of their address."""
TINKER_LOOPS = tuple(loop for loop in REQUESTS if loop != JOBS)
CREATIONS = ("files", "jobs")
"""Requests without a number or key, so a copy of one is a second creation; only the SDK's repeat is marked."""
NOT_STRUCK = ("the loop sends no such request", "a copy of a creation is another creation")
ONCE = ("create_model", "save_weights", "load_weights")
"""Requests that a loop of the Tinker API sends once."""
NUM_PASSES = {"sft": 5, "rl": 4, "dpo": 4}
"""Passes of a loop that are followed by a step. How many requests one is depends on the SDK and the server."""
SECOND_STEP = 0
"""Number of a fault: the last request of the second step's pass, or the first, which the others overtake."""
LOOP_TIMEOUT_S = 300.0
MAX_ERROR = 500
"""Characters of a server's error, which may be a stack trace, that a message shows."""
WEIGHTS = "logprobs at the end"
"""The observation that tells what the weights are."""


class FaultVerdict(NamedTuple):
    """The outcome of a loop with faults."""

    loop: str
    faults: tuple[RequestFault, ...]
    verdict: str
    error: str = ""
    """What the client saw, unless it is what it sees undisturbed."""


def fault_of(loop: str, request: str, kind: str) -> RequestFault:
    """Return a fault of one of a loop's requests. Kinds that end in `-after` wait for the acknowledgement."""
    if loop == JOBS:  # the first list of events is that with which the second one is compared
        number = 1 + (request == "events")
    elif request == "forward_backward":
        number = SECOND_STEP
    else:
        number = 1 if request in ONCE else 3 if request == "retrieve_future" else 2
    return RequestFault(kind, request, number, is_acknowledged=kind.endswith("-after"))


class Judge:
    """A client process before a server's URL."""

    def __init__(
        self, url: str, *, base: str, key: str = "any", timeout_s: float = LOOP_TIMEOUT_S, is_parallel: bool = True
    ) -> None:
        """`is_parallel`: the chunks of a batch are sent at the same time, and not only where one of them is delayed."""
        self._url = url
        self._is_parallel = is_parallel
        self._base = base
        self._key = key
        self._timeout_s = timeout_s
        self._undisturbed: dict[str, UndisturbedLoop] = {}
        self._changed: dict[tuple[str, str], dict[str, Any]] = {}
        """(Loop, change) -> what its client sees if the loop itself makes the change."""

    @contextmanager
    def sitting(
        self, callbacks: Mapping[str, Callable[[], None]] | None = None
    ) -> Iterator[Callable[..., FaultVerdict]]:
        """Yield the function that judges a loop of the Tinker API with faults. `callbacks`: such as restarts, by the
        name of the fault."""
        key = self._key if self._key.startswith("tml-") else f"tml-{self._key}"  # which the SDK requires
        with self._playing("assay.checks.api.tinker_loops", key, callbacks or {}) as (play, proxy):

            def judge(loop: str, *faults: RequestFault) -> FaultVerdict:
                undisturbed = self._undisturbed_loop(loop, play, proxy)
                faults = tuple(_with_number(fault, undisturbed.num_requests) for fault in faults)
                try:
                    found = play(loop, *faults)
                except TimeoutError as error:
                    return FaultVerdict(loop, faults, "stuck", str(error))
                if found["error"] is not None:
                    return FaultVerdict(loop, faults, "error", found["error"])
                if found["wrong"]:
                    return FaultVerdict(loop, faults, "wrong", found["wrong"])
                if proxy.missed:
                    return FaultVerdict(loop, faults, "not tried", f"the loop sends no {proxy.missed[0].path}")
                difference = undisturbed.difference(found["seen"], lambda: play(loop)["seen"])
                return FaultVerdict(
                    loop, faults, self._name_of(loop, found, faults, play) if difference else "held", difference
                )

            yield judge

    def limits(self) -> Iterator[str]:
        """Yield what differs between undisturbed loops, so that no fault is seen by it."""
        for loop, undisturbed in self._undisturbed.items():
            if (noise := undisturbed.noise()) > ROUNDING:
                yield (
                    f"{loop}: logprobs differ by {noise:.1%} between undisturbed loops, so a fault that changes them "
                    f"by less than {NOISE_FACTOR * noise:.0%} is not seen"
                )
            for metric in undisturbed.varying_metrics():
                yield f"{loop}: the metric {metric} differs between undisturbed loops, so it is not compared"

    @contextmanager
    def job_sitting(self, callbacks: Mapping[str, Callable[[], None]]) -> Iterator[Callable[..., list[FaultVerdict]]]:
        """Yield the function that judges the loop of OpenAI's API with a fault of one kind at all of its requests,
        which are judged one by one; undisturbed without a kind."""
        key = self._key.removeprefix("tml-")
        with self._playing("assay.checks.api.job_loop", key, callbacks) as (play, proxy):

            def judge(kind: str = "") -> list[FaultVerdict]:
                struck = [request for request in REQUESTS[JOBS] if not (kind == "doubled" and request in CREATIONS)]
                faults = [fault_of(JOBS, request, kind) for request in struck] if kind else []
                try:
                    found = play(JOBS, *faults)["seen"]
                except TimeoutError as late:
                    if not kind:
                        raise _unusable(JOBS, str(late)) from None
                    return [FaultVerdict(JOBS, tuple(faults), "stuck", str(late))]
                missed = {*REQUESTS[JOBS]} - {*struck} | {fault.path for fault in proxy.missed}
                return [
                    FaultVerdict(JOBS, (fault_of(JOBS, request, kind),), "not tried", NOT_STRUCK[kind == "doubled"])
                    if request in missed and outcome == "held"
                    else FaultVerdict(JOBS, (fault_of(JOBS, request, kind),), outcome, detail)
                    for request, (outcome, detail) in found.items()
                ]

            yield judge

    @contextmanager
    def _playing(
        self, module: str, key: str, callbacks: Mapping[str, Callable[[], None]]
    ) -> Iterator[tuple[Callable[..., dict[str, Any]], FaultProxy]]:
        with proxy_before(self._url, callbacks) as (proxy, address), closing(LoopClient(module)) as client:

            def play(loop: str, *faults: RequestFault, change: str = "") -> dict[str, Any]:
                is_reordered = any((fault.kind, fault.path) == ("delayed", "forward_backward") for fault in faults)
                proxy.begin(faults, is_parallel=self._is_parallel or is_reordered)
                line = {"loop": loop, "url": address, "base": self._base, "key": key, "change": change}
                return client.run({**line, "timeout_s": self._timeout_s}, lambda: proxy.failure)

            yield play, proxy

    def _undisturbed_loop(self, loop: str, play: Callable[..., dict[str, Any]], proxy: FaultProxy) -> UndisturbedLoop:
        """Raises `ConfigError` if the loop fails without faults or cannot be repeated."""
        if loop not in self._undisturbed:
            try:
                first, second = play(loop), play(loop)
            except TimeoutError as late:
                raise _unusable(loop, str(late)) from None
            if error := first["error"] or first["wrong"] or second["error"] or second["wrong"]:
                raise _unusable(loop, error)
            num_requests = max(1, proxy.num_requests["forward_backward"] // NUM_PASSES[loop])
            undisturbed = UndisturbedLoop(first["seen"], num_requests)
            if text := undisturbed.compare(second["seen"]):
                raise ConfigError(
                    f"two undisturbed loops {loop} differ, so no fault can be judged by it: {text}. Does the server "
                    "use the seeds?"
                )
            self._undisturbed[loop] = undisturbed
        return self._undisturbed[loop]

    def _name_of(
        self, loop: str, found: dict[str, Any], faults: tuple[RequestFault, ...], play: Callable[..., dict[str, Any]]
    ) -> str:
        """Return `doubled` or `lost` if a loop that does so itself ends with the same weights; else `wrong`."""
        weights = found["seen"][WEIGHTS]
        if distance(self._undisturbed[loop].seen[WEIGHTS], weights) > SAME_SUM:
            for fault in faults:
                for outcome in ("doubled", "lost"):
                    change = f"{outcome} {fault.path}"
                    if (loop, change) not in self._changed:
                        self._changed[loop, change] = play(loop, change=change)
                    if distance(self._changed[loop, change]["seen"].get(WEIGHTS), weights) <= SAME_SUM:
                        return outcome
        return "wrong"


def _with_number(fault: RequestFault, num_requests: int) -> RequestFault:
    """Return the fault with its number, where this depends on how many requests a pass is."""
    if fault.number != SECOND_STEP:
        return fault
    return fault._replace(number=num_requests + 1 if fault.kind == "delayed" else 2 * num_requests)


def _unusable(loop: str, error: str) -> ConfigError:
    return ConfigError(f"the loop {loop} fails without any fault: {' '.join(error.split())[:MAX_ERROR]}")
