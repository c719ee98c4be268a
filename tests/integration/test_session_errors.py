"""A client's mistakes are told to it, one error each, and a session beside it does not notice."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

CLIENT = Path(__file__).with_name("session_errors_client.py")


@pytest.mark.slow
def test_mistakes_are_told_and_touch_no_other_session(session_service) -> None:
    command = [sys.executable, "-W", "ignore", CLIENT, session_service.url]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    alone, disturbed = json.loads(ended.stdout)
    assert alone == disturbed and len(alone) == 4
