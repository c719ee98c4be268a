"""Writes the golden numbers anew, by a real TRL:

make .venv-bench-trl/.installed && .venv-bench-trl/bin/python tests/agreement/renew.py [NAME ...]
"""

import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1] / "src")]

import torch  # noqa: E402
import trl  # noqa: E402

from agreement.cases import CASES  # noqa: E402

if __name__ == "__main__":
    torch.set_num_threads(1)
    (HERE / "golden").mkdir(exist_ok=True)
    for name in sys.argv[1:] or CASES:
        with tempfile.TemporaryDirectory() as folder:
            found = CASES[name].trl(Path(folder))
        found.save(
            HERE / "golden" / f"{name}.safetensors",
            built_by=f"trl {trl.__version__}, torch {torch.__version__}",
        )
        print(f"{name}: loss {found.loss!r}")
