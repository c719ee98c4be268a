"""Rows for language models come out as they once did, token by token: what was trained on is built again.

The tokenizer is the one of `curves/`. A change that is meant shows itself by

    ASSAY_RENEW_GOLDEN=1 .venv/bin/pytest tests/golden/test_language_rows.py
"""

import json
import os
from pathlib import Path
from typing import Any, get_args

import pytest

from assay.data.dataset import build
from assay.data.dataset.dataset import Dataset
from assay.data.dataset.fields import BuildConfig
from assay.data.pools.pool import ThreadPool
from assay.records.dataset import Format

FILE = Path(__file__).parent / "language_rows.json"
TOKENIZER = Path(__file__).parent / "curves/tokenizer.json"
TEMPLATE = """\
{%- for message in messages %}{{ message.role + ':\\n' }}
{%- if message.role == 'assistant' %}
    {%- generation %}{{ message.content + '\\n' }}{% endgeneration %}
{%- else %}{{ message.content + '\\n' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ 'assistant:\\n' }}{% endif %}
"""
REQUEST = [{"role": "system", "content": "Write docstrings."}, {"role": "user", "content": "def grüß(name: str):"}]
GOOD = [{"role": "assistant", "content": "Return a greeting."}]
BAD = [{"role": "assistant", "content": "greeting a Return."}]
ROWS: dict[str, list[dict[str, Any]]] = {
    "labelled": [{"text": "def f(x):\n    return x", "label": 1}, {"text": "x " * 50, "label": 0}],
    "text": [{"text": "import numpy as np\n" * 5}, {"text": "α + β"}, {"text": " "}],
    "chat": [
        {
            "messages": [
                *REQUEST,
                *GOOD,
                {"role": "user", "content": "Again."},
                {**BAD[0], "weight": 0},
                *REQUEST[1:],
                *GOOD,
            ]
        },
        {"prompt": "def f(x):", "completion": "\n    return x"},
        {"prompt": REQUEST, "completion": GOOD},
        {"messages": [*REQUEST, {"role": "assistant", "content": "far too long " * 50}]},
    ],
    "pairs": [
        {"prompt": "def f(x): re", "chosen": "turn x", "rejected": "turns", "margin": 0.5},
        {"chosen": [*REQUEST, *GOOD], "rejected": [*REQUEST, *BAD]},
        {"input": {"messages": REQUEST}, "preferred_output": GOOD, "non_preferred_output": BAD},
    ],
    "prompts": [{"prompt": REQUEST, "answer": "4"}, {"prompt": "2 + 2 =", "item": {"answer": 4}}],
}


@pytest.mark.parametrize("format", get_args(Format))
def test_rows_come_out_as_they_once_did(tmp_path: Path, format: Format, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "ProcessPool", ThreadPool)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS[format]))
    (tmp_path / "template.jinja").write_text(TEMPLATE)
    has_messages = format in ("chat", "pairs", "prompts")
    config = BuildConfig(
        tokenizer=str(TOKENIZER),
        format=format,
        chat_template=str(tmp_path / "template.jinja") if has_messages else None,
        end_token=None if format == "labelled" else "[CLS]",
        key_is_text=True,
        max_tokens=24 if format == "text" else 128,
    )
    manifest = build.build_dataset([tmp_path / "rows.jsonl"], tmp_path / "out", config, name="rows", workers=1)
    dataset = Dataset.open(tmp_path / "out")
    rows = dataset.read_row_group(0, list(manifest.columns)).to_pylist()
    tree = manifest.to_tree()
    # The bytes of shards are another pyarrow's.
    for name in ("fingerprint", "row_groups_sha256", "footers_sha256", "shards"):
        del tree[name]
    summary = tree["build"]
    for name in ("first_empty", "first_long"):
        summary[name] = summary[name].removeprefix(f"{tmp_path}/")
    found = {"rows": rows, "manifest": tree}
    golden = json.loads(FILE.read_text()) if FILE.exists() else {}
    if os.environ.get("ASSAY_RENEW_GOLDEN"):
        FILE.write_text(json.dumps({**golden, format: found}, indent=1, ensure_ascii=False) + "\n")
        return
    assert found == golden[format]
