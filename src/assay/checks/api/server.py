"""The server under test: which APIs its URL offers, and the operator's commands that restart it."""

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Collection, Mapping
from http.client import HTTPException
from importlib.util import find_spec
from typing import NamedTuple
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from assay.base.errors import ConfigError, NotInstalledError

PROBE_S = 10.0
POLL_S = 0.1
MAX_OUTPUT = 500
"""Characters of a failed command's output that an error shows."""
JOBS = "jobs"
"""The loop of OpenAI's API; the others are of the Tinker API."""
ROUTES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "Tinker": ("/api/v1/get_server_capabilities", ("sft", "rl", "dpo")),
    "OpenAI": ("/v1/fine_tuning/jobs", (JOBS,)),
}
"""API -> what it serves, and the loops that use it."""
SDKS = {"Tinker": "tinker", "OpenAI": "openai"}


class CheckedServer(NamedTuple):
    """A server, and what is tried on it."""

    url: str
    loops: list[str]
    not_tried: list[str]
    """What is left out, and why."""


def find_target(url: str, key: str, chosen: Collection[str]) -> CheckedServer:
    """Return the server with the loops that its APIs allow, of those chosen, or all if none is. Raises `ConfigError` if
    it does not respond, refuses the key or offers no API, or if an SDK is missing."""
    url = url.rstrip("/").removesuffix("/api/v1").removesuffix("/v1")
    target, refused = CheckedServer(url, [], []), list[str]()
    for api, (path, loops) in ROUTES.items():
        status = _status(url + path, key)
        if status in (401, 403):
            raise ConfigError(f"{url} refuses the key ({status} to GET {path}). Give it one with --key.")
        if status >= 400:
            refused.append(f"the {api} API: the server answers {status} to GET {path}")
            continue
        target.loops.extend(loop for loop in loops if not chosen or loop in chosen)
        target.not_tried.extend(f"the loop {loop}: not chosen" for loop in loops if loop not in target.loops)
        if {*loops} & {*target.loops} and find_spec(SDKS[api]) is None:
            raise NotInstalledError(f"the SDK {SDKS[api]} is not installed: pip install 'assay[apis]'.")
    if len(refused) == len(ROUTES):
        raise ConfigError(
            f"{url} offers no training API: {'; '.join(refused)}. Give the URL before /api/v1 or /v1, such as "
            "http://127.0.0.1:8017."
        )
    if not target.loops:
        raise ConfigError(f"{url} serves none of the loops {', '.join(chosen)}: {'; '.join(refused)}.")
    target.not_tried.extend(refused)
    return target


def _status(address: str, key: str) -> int:
    token = key.removeprefix("tml-")
    headers = {"authorization": f"Bearer {token}", "x-api-key": f"tml-{token}"}
    try:
        with urlopen(Request(address, headers=headers), timeout=PROBE_S) as response:
            status: int = response.status
            return status
    except HTTPError as error:
        return error.code
    except TimeoutError:
        raise ConfigError(f"{address}: no response within {PROBE_S:.0f} s. Is the server well?") from None
    except (OSError, HTTPException, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise ConfigError(f"{address}: {reason}. Start the server, or check the URL.") from None


def run_command(option: str, command: str, url: str, timeout_s: float) -> None:
    """Run a shell command that restarts the server; return once it responds. Raises `ConfigError` if the command fails
    or does not end, or the server does not come back."""
    with tempfile.TemporaryFile() as output:  # a server that the command starts may hold it open, unlike a pipe
        process = subprocess.Popen(
            command, shell=True, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
        try:
            status = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise ConfigError(
                f"{option} {command!r} did not end within {timeout_s:.0f} s and was killed. It has to return once the "
                "server is started: start that in the background."
            ) from None
        output.seek(0)
        text = output.read().decode(errors="replace").strip()[-MAX_OUTPUT:]
    if status:
        raise ConfigError(f"{option} {command!r} failed with exit code {status}: {text or 'no output'}. Try it alone.")
    deadline_s = time.monotonic() + timeout_s
    while not _responds(url):
        if time.monotonic() > deadline_s:
            raise ConfigError(
                f"the server at {url} did not come back within {timeout_s:.0f} s after {option} {command!r}: "
                f"{text or 'no output'}. The command has to start it again, or something else has to."
            )
        time.sleep(POLL_S)


def _responds(url: str) -> bool:
    try:
        urlopen(url, timeout=PROBE_S).close()
    except HTTPError:
        return True
    except (OSError, HTTPException):
        return False
    return True
