"""Datasets from Python: index, build, open and show them."""

from functools import cached_property
from pathlib import Path
from typing import Any

from assay.api.commands import path_text, run_command
from assay.api.report import Report
from assay.base.errors import DataError
from assay.cli.wording import worded
from assay.data.dataset.dataset import Dataset as OpenedDataset
from assay.data.dataset.manifest_file import MANIFEST_FILE, check_is_dataset
from assay.records.dataset import DatasetManifest
from assay.workflows.processes.foreground import flags_of

DATASETS = Path("datasets")
"""Where a dataset is found by its name, as in the examples of the commands."""
FRAME_HINT = "Write the rows to a file first, as DataFrame.to_parquet('rows.parquet') does."


@worded
class Dataset:
    """An indexed dataset: what its manifest says. `len` is its number of rows."""

    def __init__(self, dataset: str | Path) -> None:
        """`dataset`: its folder, or the name of one in `datasets`. Raises `AssayError` if there is none."""
        folder = Path(path_text(dataset, of="Dataset", hint="Open a dataset by its folder."))
        if not (folder / MANIFEST_FILE).is_file() and folder.name == str(dataset) and (DATASETS / folder).is_dir():
            folder = DATASETS / folder
        check_is_dataset(folder)
        self.folder = folder

    @classmethod
    def index(cls, source: str | Path, out: str | Path, **options: Any) -> "Dataset":
        """Index the tokenized Parquet files of `source` where they are; the manifest goes to the folder `out`.

        `options`: those of `assay data index` with underscores, such as `no_label=True` or `jobs=4`.
        """
        run_command("data", "index", path_text(source, of="index", hint=FRAME_HINT), f"--out={out}", *flags_of(options))
        return cls(out)

    @classmethod
    def build(cls, *sources: str | Path, out: str | Path, **options: Any) -> "Dataset":
        """Tokenize the rows of `sources` into Parquet shards in the folder `out`, and index them.

        `options`: those of `assay data build` with underscores, such as `format="chat"` or `tokenizer="new:8000"`; a
        list for an option that may be repeated.
        """
        if not sources:
            raise DataError("build needs a source: assay.Dataset.build('rows.jsonl', out='datasets/mine').")
        paths = [path_text(source, of="build", hint=FRAME_HINT) for source in sources]
        run_command("data", "build", *paths, f"--out={out}", *flags_of(options))
        return cls(out)

    @cached_property
    def manifest(self) -> DatasetManifest:
        """The manifest: rows, tokens, columns, shards, profile and fingerprint."""
        return OpenedDataset.open(self.folder).manifest

    @property
    def fingerprint(self) -> str:
        """The digest that identifies the rows and their bytes."""
        return self.manifest.fingerprint

    def __len__(self) -> int:
        return self.manifest.num_rows

    def __repr__(self) -> str:
        return f"Dataset({str(self.folder)!r})"

    def report(self) -> Report[DatasetManifest]:
        """Return what `assay data show` shows."""
        from assay.reporting.terminal.data import print_manifest

        return Report(self.manifest, lambda: print_manifest(self.manifest, self.folder), of=("data", "build"))

    def __str__(self) -> str:
        return str(self.report())

    def _repr_html_(self) -> str:
        return self.report()._repr_html_()
