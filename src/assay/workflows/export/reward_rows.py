"""Reads rows of a file for a reward model: parsed, rendered and ended like its training rows.

{prompt, chosen, rejected}, {chosen, rejected}   ->  two sequences
{messages}, {prompt, completion}                 ->  one
a text                                           ->  one
"""

from pathlib import Path
from typing import NamedTuple

from tokenizers import Tokenizer

from assay.base.errors import DataError
from assay.data.dataset.formats.boundaries import control_tokens, pattern_of
from assay.data.dataset.formats.encode import Encoder, UsableRow
from assay.data.dataset.formats.rows import FIELDS, RenderedRow, RowReader, nested
from assay.data.dataset.formats.template import ChatTemplate, tokenizer_template
from assay.data.dataset.raw.span import Row
from assay.data.dataset.tokens import load_tokenizer, special_tokens, tokenizer_settings
from assay.records.dataset import Format
from assay.workflows.export.row_files import REWARD_FORMATS, of_header

REWARD_NAMES = {1: ("reward",), 2: ("chosen_reward", "rejected_reward")}
"""Names of a row's rewards by the number of its sequences."""


class RewardRows(NamedTuple):
    """Reads rows with the tokenizer and template of a reward model."""

    tokenizer: Tokenizer
    template: ChatTemplate | None
    end: str
    """Token appended to a text or completion; empty for none."""
    max_tokens: int
    """Maximum sequence length of the model."""

    @classmethod
    def of(cls, tokenizer: Path, max_tokens: int) -> "RewardRows":
        """Use the template and settings next to the tokenizer."""
        special = special_tokens(tokenizer_settings(tokenizer))
        template = tokenizer_template(tokenizer, special)
        return cls(load_tokenizer(tokenizer), template, special.get("eos_token", ""), max_tokens)

    def sequences(self, row: Row, where: str, text: str) -> list[list[int]]:
        """Return the tokens of each sequence of a row; empty if it has no text."""
        present = {name for name, value in row.items() if value is not None}
        roots = {name.partition(".")[0] for name in present}
        kinds: list[Format] = [
            kind for kind in REWARD_FORMATS if any(roots.issuperset(fields) for fields in FIELDS[kind])
        ]
        if not kinds and text not in row:
            raise DataError(
                f"{of_header(where)}: no column '{text}', and no pair (chosen, rejected), conversation "
                f"(messages) or completion (prompt, completion); it has {', '.join(row)}. Name "
                "the text's column: --text NAME."
            )
        reader = RowReader(
            kinds[0] if kinds else "text",
            text,
            self.template,
            self.end,
            pattern_of(control_tokens(self.tokenizer, self.template)),
            control_is_text=True,
        )
        rendered = reader.read(nested(row), where)
        return [] if rendered is None else self._tokens(rendered, where)

    def _tokens(self, rendered: RenderedRow, where: str) -> list[list[int]]:
        encoder = Encoder(self.tokenizer, "chat", "", self.max_tokens, drops_unusable=False, end=self.end)
        (encodings,) = encoder.encodings([UsableRow(where, {}, rendered)])
        found = [encoding.ids for encoding in encodings]
        if (longest := max(map(len, found))) > self.max_tokens:
            raise DataError(
                f"{where}: {longest} tokens, and the model's limit is {self.max_tokens}. Shorten or drop the row."
            )
        return found
