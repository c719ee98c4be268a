"""A server in memory and the SDK that calls it, unless a file has its own."""

from pathlib import Path

import openai
import pytest

from assay.serving.openai.app_state import AppState
from served import app_in, sdk_of


@pytest.fixture
def app(tmp_path: Path) -> AppState:
    return app_in(tmp_path)


@pytest.fixture
def sdk(app: AppState) -> openai.OpenAI:
    return sdk_of(app)
