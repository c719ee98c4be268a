"""What every record is: frozen, versioned JSON that names its inputs by digest."""

from pathlib import Path
from typing import ClassVar, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from assay.base.digest import canonical_json, sha256_of_json
from assay.base.errors import DataError


class Record(BaseModel):
    """One fact that a stage hands to the next. Never edited: a correction is a new record."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    kind: ClassVar[str]
    """The record's type, as written in its JSON."""

    version: ClassVar[int] = 1
    """Rises when the meaning of a field changes; older readers then refuse."""

    def to_json(self) -> str:
        """Canonical JSON with `kind` and `version`; equal records have equal text."""
        return canonical_json(self.to_tree())

    def to_tree(self) -> dict[str, object]:
        """The JSON tree with `kind` and `version`."""
        return {"kind": self.kind, "version": self.version, **self.model_dump(mode="json")}

    def digest(self) -> str:
        """SHA-256 of the canonical JSON: the name by which other records point here."""
        return sha256_of_json(self.to_tree())

    @classmethod
    def from_json(cls, text: str | bytes, *, source: str | Path) -> Self:
        """Read one record; `source` is what an error names."""
        import json

        try:
            tree = json.loads(text)
        except ValueError as error:
            raise DataError(f"{source}: not JSON ({error}). The file was cut short or overwritten.") from error
        if not isinstance(tree, dict) or tree.pop("kind", None) != cls.kind:
            raise DataError(f"{source}: not a '{cls.kind}' record.")
        if (version := tree.pop("version", None)) != cls.version:
            raise DataError(
                f"{source}: '{cls.kind}' version {version}; this assay reads version {cls.version}. "
                "Use the assay that wrote it, or write it anew."
            )
        try:
            return cls.model_validate(tree)
        except ValidationError as error:
            raise DataError(f"{source}: a '{cls.kind}' record with wrong fields: {error}") from error
