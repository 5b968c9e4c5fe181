"""Tags of a call: checked, and encoded as they are recorded.

Most calls of a service have one of a few sets of tags, so a set is checked and encoded once, and then found by its
pairs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple, NoReturn

from darksight_core.rows.tags import REFERENCE, TagSet, find_problem
from darksight_service.errors import RequestError
from darksight_service.ingest.tag_section import encode_references, encode_tag_sets

__all__ = ["NO_TAGS", "RowTags", "Tags", "read_tags"]

# Characters of one reference that is repeated for each row: the longest for 65,536 rows.
_MAX_REFERENCES = 1 << 25

Tags = Mapping[str, str] | Sequence[Mapping[str, str]]
"""The tags of all rows of a call, or those of each row."""


class RowTags(NamedTuple):
    """Tags of the rows of a call.

    Parameters
    ----------
    sets
        The different sets of tags.
    set_of
        Which of them each row has; empty if all rows have the first.
    encoded, references
        The same as bytes, and the references of the rows.
    """

    sets: tuple[TagSet, ...]
    set_of: tuple[int, ...]
    encoded: bytes
    references: bytes

    def dicts(self) -> Tags:
        """The tags of all rows by key, or those of each row if they differ; without references."""
        tables = [dict(each) for each in self.sets]
        return [tables[number] for number in self.set_of] if self.set_of else tables[0]


NO_TAGS = RowTags(((),), (), b"", b"")
"""Of a call without tags."""


def read_tags(tags: Tags, rows: int) -> RowTags:
    """The tags of the rows of a call; RequestError if they are not valid."""
    if isinstance(tags, Mapping):
        if REFERENCE not in tags:
            return _read_pairs(tuple(tags.items()))
        problem = find_problem(tags)
        if problem:
            _refuse(problem)
        if len(tags[REFERENCE]) * rows > _MAX_REFERENCES:
            _refuse(f"a reference of {rows:,} rows takes too much space; give it to the rows that need it")
        return _encoded(_pairs(tags), references=[tags[REFERENCE]] * rows)
    if len(tags) != rows:
        raise RequestError(f"row_tags: got the tags of {len(tags)} rows for {rows} rows", field="row_tags")
    return _read_rows(tags)


@lru_cache(maxsize=1024)
def _read_pairs(pairs: TagSet) -> RowTags:
    """The tags of all rows, which have no reference."""
    tags = dict(pairs)
    problem = find_problem(tags)
    if problem:
        _refuse(problem)
    return _encoded(_pairs(tags)) if tags else NO_TAGS


def _read_rows(tags: Sequence[Mapping[str, str]]) -> RowTags:
    numbers: dict[TagSet, int] = {}
    index, references = [], []
    for row, each in enumerate(tags):
        problem = find_problem(each)
        if problem:
            _refuse(problem, row)
        index.append(numbers.setdefault(_pairs(each), len(numbers)))
        references.append(each.get(REFERENCE, ""))
    if len(numbers) == 1:
        index = []
    return _encoded(*numbers, index=index, references=references)


def _pairs(tags: Mapping[str, str]) -> TagSet:
    return tuple(sorted(pair for pair in tags.items() if pair[0] != REFERENCE))


def _encoded(*sets: TagSet, index: Sequence[int] = (), references: Sequence[str] = ()) -> RowTags:
    return RowTags(sets, tuple(index), encode_tag_sets(sets, index), encode_references(references))


def _refuse(problem: str, row: int | None = None) -> NoReturn:
    if row is None:
        raise RequestError(f"tags: {problem}", field="tags")
    raise RequestError(f"row_tags[{row}]: {problem}", field="row_tags", row=row)
