"""What honest graders do, within the fence: their scores are those of the same source run here."""

import random
import statistics
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from assay.scoring.python_process import PythonProcess

HONEST = {
    "exact match": "return float(sample['output_text'].strip() == item['answer'])",
    "a number in words": "import re\nreturn int(re.findall(r'-?\\d+', sample['output_text'])[-1]) == 42",
    "edit distance": (
        "import difflib\nreturn difflib.SequenceMatcher(None, sample['output_text'], item['answer']).ratio()"
    ),
    "keys of JSON": "import json\nreturn len(json.loads(item['tree'])) / 4",
    "token overlap": (
        "from collections import Counter\nsaid = Counter(sample['output_text'].split())\n"
        "return (said & Counter(['42', 'is'])).total() / max(1, said.total())"
    ),
    "arithmetic by its tree": (
        "import ast\ntree = ast.parse(item['sum'], mode='eval')\n"
        "return eval(compile(tree, 'sum', 'eval'), {'__builtins__': {}}) / 100"
    ),
    "exact fractions": "from fractions import Fraction\nreturn float(sum(Fraction(1, n) for n in range(1, 9)))",
    "an array": "import numpy\nreturn float(numpy.linalg.norm(numpy.arange(9.0).reshape(3, 3), 2))",
    "threads of its own": (
        "from concurrent.futures import ThreadPoolExecutor\nwith ThreadPoolExecutor(3) as pool:\n"
        "    return sum(pool.map(len, item['sum'].split())) / 10"
    ),
    "a table in memory": (
        "import sqlite3\nwith sqlite3.connect(':memory:') as db:\n"
        "    return db.execute('select sum(value) from (select 1 as value union select 2)').fetchone()[0] / 4"
    ),
    "a time limit of its own": (
        "import signal\nsignal.signal(signal.SIGALRM, signal.SIG_IGN)\nsignal.alarm(5)\ntry:\n"
        "    return len(sample['output_text']) / 100\nfinally:\n    signal.alarm(0)"
    ),
    "a draw": "import random\nreturn random.random()",
}
SAMPLE: dict[str, Any] = {"output_text": "the answer is 42"}
ITEM = {"answer": "42", "tree": '{"a": 1, "b": [2]}', "sum": "3 * (4 + 5)"}


def source(body: str) -> str:
    lines = "".join(f"\n    {line}" for line in body.splitlines())
    return f"def grade(sample, item):{lines}"


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    state = random.getstate()
    yield
    random.setstate(state)


@pytest.mark.parametrize("honest", HONEST)
def test_an_honest_grader_scores_as_without_a_fence(honest: str, fenced: None) -> None:
    names: dict[str, Any] = {}
    exec(source(HONEST[honest]), names)
    random.seed(0)
    expected = float(names["grade"](SAMPLE, ITEM))
    with closing(PythonProcess(source(HONEST[honest]))) as process:
        grades = [process.grade(SAMPLE, ITEM) for _ in range(2)]
        assert [(grade.score, grade.failure) for grade in grades] == [(expected, None)] * 2


def test_a_sample_costs_less_than_a_millisecond(fenced: None) -> None:
    took_s = []
    with closing(PythonProcess(source(HONEST["exact match"]))) as process:
        process.grade(SAMPLE, ITEM)
        child = process._child
        for _ in range(300):
            began_s = time.perf_counter()
            process.grade(SAMPLE, ITEM)
            took_s.append(time.perf_counter() - began_s)
        assert process._child is child, "one process served all"
    assert statistics.quantiles(took_s, n=10)[0] < 1e-3, "nine in ten may have waited for others"
