"""Rows of `.jsonl` and `.parquet` files that have the likeliest tokens of a language model in place of probabilities.

A line is a response of a server, or the part of it that names the class, `top_logprobs`, beside `label`, `id` and
`tag_<key>`. In a table `top_logprobs` is a column of lists of `token` and `logprob`. The classes are those of the
caller, or `class_names` of the first line.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from darksight_core.predictions.defects import defect
from darksight_core.predictions.labels import check_ids, check_labels, check_tags
from darksight_core.predictions.raw_rows import Layout, RawRows
from darksight_core.predictions.rows import Predictions
from darksight_core.rows.partial import TopRowsError
from darksight_core.rows.tokens import ClassTokens, TokenError

__all__ = ["TOKENS_BYTES", "TokenClasses", "check_tokens", "token_layout"]

TokenClasses: TypeAlias = Sequence[str] | Callable[[], Sequence[str]]
"""The classes of tokens, or a function that returns them, which is called if a file has tokens and no classes."""

TOKENS_BYTES = 8_192
"""Twenty tokens and their log-probabilities as Python objects."""


def token_layout(classes: TokenClasses, source: str, n_rows: int | None = None) -> Layout:
    """The layout of a file of tokens, whose classes have to be named."""
    names = classes() if callable(classes) else classes
    if isinstance(names, str) or not names or not all(isinstance(name, str) for name in names):
        text = "the rows are tokens of a language model, and their classes are not named. Name them with --classes "
        text += "(fit), or in the first line, as a list class_names of texts."
        raise defect("predictions_class_names", source, text)
    columns = tuple(f"class {name}" for name in names)
    return Layout(source, False, tuple(names), columns, "label", "id", "", n_rows, has_tokens=True)


def check_tokens(raw: RawRows, seen: dict[str, None]) -> Predictions:
    """Checked rows of tokens; parameters as in `checks.check`."""
    names, source = raw.layout.class_names, raw.layout.source
    labels, ids, tags = check_labels(raw), check_ids(raw, seen), check_tags(raw)
    try:
        top = ClassTokens(names).rows(raw.values.tolist())
        return Predictions.of_top(top, names, source, labels=labels, ids=ids, tags=tags)
    except (TokenError, TopRowsError) as error:
        where = raw.location(int(str(error.details["row"])))
        raise defect("predictions_top_logprobs", text=f"{error.message.partition(': ')[2]}.", **where) from None
