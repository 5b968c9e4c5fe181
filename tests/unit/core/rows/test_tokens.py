"""Which class a token stands for, and what responses of servers say."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from darksight_core.errors import ConfigError
from darksight_core.rows.tokens import ClassTokens, TokenError, answer_positions

TOP = [{"token": "Yes", "logprob": -0.1}, {"token": "No", "logprob": -3.0}]


def test_variants_of_a_word_are_one_class() -> None:
    """Blanks of any tokenizer and case do not matter."""
    tokens = ClassTokens(["no", "yes"])

    assert [tokens[token] for token in (" Yes", "yes", "YES", "▁yes", "Ġyes", "yes\n")] == [1] * 6
    assert tokens["yesterday"] == -1


def test_words_that_differ_in_case_alone_are_told_apart_by_case() -> None:
    """A token that is exactly one of them is its class, and another spelling is neither."""
    tokens = ClassTokens(["it", "IT"])

    assert [tokens[token] for token in (" it", "IT", "It")] == [0, 1, -1]


def test_a_class_may_have_other_words_than_its_name() -> None:
    """Its name is then no word of it."""
    tokens = ClassTokens(["negative", "positive"], {"negative": ["neg", "bad"], "positive": "pos"})

    assert [tokens[token] for token in ("Neg", "bad", "POS", "positive")] == [0, 0, 1, -1]


@pytest.mark.parametrize(
    ("words", "text"), [({"maybe": "m"}, "'maybe' is not a class"), ({"a": "b"}, "classes 'a' and 'b'")]
)
def test_wrong_words_are_refused(words: dict[str, str], text: str) -> None:
    """Words of no class, and of two."""
    with pytest.raises(ConfigError, match=text):
        ClassTokens(["a", "b"], words)


def test_tokens_of_one_class_are_added_and_others_are_other() -> None:
    """What is left of one is not named."""
    rows = ClassTokens(["cat", "dog"]).rows([{"cat": math.log(0.5), " Cat": math.log(0.2), "The": math.log(0.1)}])

    assert rows.classes.tolist() == [[0, -1, -1]]
    np.testing.assert_allclose(np.exp(rows.log_probabilities[0, 0]), 0.7)
    np.testing.assert_allclose(rows.other, [0.1])


def test_only_the_k_likeliest_tokens_are_read() -> None:
    """So a drawn token beyond them does not make a row finer."""
    rows = ClassTokens(["a", "b", "c"]).rows([{"c": -9.0, "a": -0.1, "b": -3.0}, {"a": -0.2}], k=2)

    assert rows.resolution == 2
    assert rows.classes.tolist() == [[0, 1], [0, -1]]


@pytest.mark.parametrize("logprob", [None, -9999.0, -math.inf, -(10**400)])
def test_impossible_tokens_are_not_known(logprob: float | None) -> None:
    """Servers write minus infinity in several ways."""
    rows = ClassTokens(["a", "b"]).rows([[{"token": "a", "logprob": -0.1}, {"token": "b", "logprob": logprob}]])

    assert rows.classes.tolist() == [[0, -1]]


@pytest.mark.parametrize(
    "position",
    [
        None,
        [],
        {},
        {"top_logprobs": None},
        {"top_logprobs": []},
        {"top_logprobs": [1]},
        [{"token": 5, "logprob": -1.0}],
        [{"token": "a", "logprob": "-1"}],
        [{"token": "a", "logprob": math.nan}],
        [{"token": "a", "logprob": 0.5}],
        [{"token": "a", "logprob": True}],
    ],
    ids=repr,
)
def test_other_positions_are_refused(position: Any) -> None:
    """The error names the row."""
    with pytest.raises(TokenError, match="row 1: ") as caught:
        ClassTokens(["a", "b"]).rows([{"a": -0.1}, position])

    assert caught.value.details["row"] == 1


@pytest.mark.parametrize(
    "response",
    [
        {"choices": [{"logprobs": {"content": [{"token": "Yes", "logprob": -0.1, "top_logprobs": TOP}]}}]},
        {"choices": [{"logprobs": {"tokens": ["Yes"], "top_logprobs": [{"Yes": -0.1, "No": -3.0}]}}]},
        {"content": "Yes", "completion_probabilities": [{"id": 3, "token": "Yes", "top_logprobs": TOP}]},
        {"message": {"content": "Yes"}, "logprobs": [{"token": "Yes", "logprob": -0.1, "top_logprobs": TOP}]},
        {"output": [{"type": "reasoning"}, {"content": [{"text": "Yes", "logprobs": [{"top_logprobs": TOP}]}]}]},
        {"top_logprobs": TOP},
    ],
    ids=["chat", "completions", "llama.cpp", "ollama", "responses", "alone"],
)
def test_responses_of_servers(response: Any) -> None:
    """All give the same row."""
    rows = ClassTokens(["no", "yes"]).rows(answer_positions(response))

    assert rows.classes.tolist() == [[1, 0]]
    np.testing.assert_allclose(rows.log_probabilities, [[-0.1, -3.0]])


@pytest.mark.parametrize(
    "response",
    [None, [], {}, {"choices": []}, {"choices": [{"logprobs": None}]}, {"choices": [{"logprobs": {"content": []}}]}, 5],
    ids=repr,
)
def test_responses_without_log_probabilities(response: Any) -> None:
    """Nothing is known of their tokens."""
    assert answer_positions(response) == ()
