"""What tags may be."""

from __future__ import annotations

import pytest

from darksight_core.rows.tags import find_problem


@pytest.mark.parametrize(
    ("tags", "problem"),
    [
        ({}, None),
        ({"camera": "7", "site_2": "Lyon – Part-Dieu"}, None),
        ({"note": "<script>alert('é')</script> \u202e=1+1"}, None),
        ({"reference": "https://example.org/" + "a" * 492}, None),
        ({f"k{number}": "1" for number in range(8)}, None),
        ({f"k{number}": "1" for number in range(9)}, "has 9 tags; the limit is 8"),
        ({"Camera": "7"}, "'Camera' is not a key"),
        ({"": "7"}, "'' is not a key"),
        ({"a" * 33: "7"}, f"'{'a' * 33}' is not a key"),
        ({"a b": "7"}, "'a b' is not a key"),
        ({"_other": "7"}, "'_other' is not a key"),
        ({"camera": ""}, "the value of camera has 0 characters; it must have 1 to 128"),
        ({"camera": "x" * (1 << 20)}, "the value of camera has 1,048,576 characters; it must have 1 to 128"),
        ({"reference": "x" * 513}, "the value of reference has 513 characters; it must have 1 to 512"),
        ({"camera": "a\nb"}, "the value of camera has a control character"),
        ({"camera": "a\0"}, "the value of camera has a control character"),
        ({"camera": "a\u2028"}, "the value of camera has a control character, a line separator"),
        ({"camera": "\ud800"}, "the value of camera has a control character, a line separator or a surrogate"),
        ({"camera": 7}, "the value of camera is int; it must be text"),
    ],
)
def test_the_first_problem_is_named(tags: dict[str, str], problem: str | None) -> None:
    """Keys and values are checked by length and characters."""
    found = find_problem(tags)

    assert found == problem if problem is None else str(found).startswith(problem)
