"""From tokens of a language model to classes: which token stands for which class, and rows of their probabilities.

A language model that classifies answers with a token, and its server returns the k likeliest tokens of that position
with their log-probabilities. A class has one word or several; a token stands for a class if it is one of its words,
without regard to case and to blanks around it: "Yes", " yes" and "YES" are one class. Probabilities of tokens of one
class are added. Those of all other tokens are `other`, which is no class.

A word that is several tokens of the model is never among the tokens: the first of them has to be given as the word.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from darksight_core.errors import ConfigError, PredictionsError, did_you_mean
from darksight_core.rows.partial import TopRows

__all__ = ["ClassTokens", "TokenError", "answer_positions"]

# How tokenizers write a blank or a line break before a word.
_BLANKS = "\u2581\u0120\u010a \t\r\n"
# Rounding of a probability of one.
_MAX_LOGPROB = 1e-3


class TokenError(PredictionsError):
    """Log-probabilities of tokens are missing or cannot be read; `row` in the details is the number of the row."""

    code = "token_logprobs"


class ClassTokens:
    """Which class a token stands for.

    Parameters
    ----------
    class_names
        The classes, which are also their words.
    words
        Words of classes that have others: one word or several, by class.

    >>> tokens = ClassTokens(["no", "yes"], {"yes": ["yes", "true"]})
    >>> [tokens[token] for token in (" Yes", "TRUE", "No", "Maybe")]
    [1, 1, 0, -1]
    """

    def __init__(self, class_names: Sequence[str], words: Mapping[str, str | Sequence[str]] | None = None) -> None:
        words = words or {}
        unknown = next((name for name in words if name not in class_names), None)
        if unknown is not None:
            raise ConfigError(f"words: {unknown!r} is not a class; {did_you_mean(unknown, class_names)}")
        self._exact: dict[str, int] = {}
        folded: dict[str, set[int]] = {}
        for number, name in enumerate(class_names):
            given = words.get(name, name)
            for word in (given,) if isinstance(given, str) else given:
                bare = word.strip(_BLANKS)
                if self._exact.setdefault(bare, number) != number:
                    first = class_names[self._exact[bare]]
                    raise ConfigError(f"words: {word!r} is a word of the classes {first!r} and {name!r}")
                folded.setdefault(bare.casefold(), set()).add(number)
        # Words of two classes that differ in case alone, such as "a" and "A", are told apart by case.
        self._folded = {word: min(found) for word, found in folded.items() if len(found) == 1}

    def __getitem__(self, token: str) -> int:
        """Number of the class that a token stands for, or -1."""
        bare = token.strip(_BLANKS)
        return self._exact.get(bare, self._folded.get(bare.casefold(), -1))

    def rows(self, positions: Sequence[Any], k: int | None = None) -> TopRows:
        """Top-k rows of n positions of answers.

        Parameters
        ----------
        positions
            For each row `{"top_logprobs": [{"token": "cat", "logprob": -0.11}, ...]}`, or that list, or
            `{"cat": -0.11, ...}`. A log-probability of -9999, minus infinity or None is a probability of zero.
        k
            How many tokens the server was asked for; the k likeliest ones of a position are read. Default: the largest
            number of tokens of a position.

        >>> rows = ClassTokens(["cat", "dog"]).rows([{"dog": -0.1, " Dog": -3.0, "The": -4.0}])
        >>> rows.classes.tolist(), np.exp(rows.log_probabilities).round(3).tolist(), rows.other.round(3).tolist()
        ([[1, -1, -1]], [[0.955, 0.0, 0.0]], [0.018])
        """
        tokens = [_read_position(position, row) for row, position in enumerate(positions)]
        k = k or max(map(len, tokens), default=1)
        classes = np.full((len(tokens), k), -1, dtype=np.int32)
        log_probabilities = np.full((len(tokens), k), -np.inf)
        other = np.zeros(len(tokens))
        for row, pairs in enumerate(tokens):
            found: dict[int, float] = {}
            for token, probability in sorted(pairs, key=lambda pair: -pair[1])[:k]:
                number = self[token]
                found[number] = found.get(number, 0.0) + probability
            other[row] = min(found.pop(-1, 0.0), 1.0)
            for column, (number, probability) in enumerate(found.items()):
                if probability > 0.0:
                    classes[row, column] = number
                    log_probabilities[row, column] = min(math.log(probability), 0.0)
        return TopRows(classes, log_probabilities, other)


def answer_positions(response: Any) -> Sequence[Any]:
    """What a response says about each token of its answer, for `ClassTokens.rows`; empty without log-probabilities.

    Parameters
    ----------
    response
        A response of an OpenAI-compatible server (chat, completions or responses), of llama.cpp or of Ollama, as
        parsed JSON. Or an object with `top_logprobs` alone.
    """
    if not isinstance(response, Mapping):
        return ()
    if "top_logprobs" in response:
        return (response,)
    for found in (
        _first(response.get("choices")).get("logprobs"),
        response.get("completion_probabilities"),
        response.get("logprobs"),
        *(_first(item.get("content")).get("logprobs") for item in _objects(response.get("output"))),
    ):
        positions = found.get("content") or found.get("top_logprobs") if isinstance(found, Mapping) else found
        if isinstance(positions, list) and positions:
            return positions
    return ()


def _objects(values: Any) -> list[Mapping[str, Any]]:
    return [each for each in values if isinstance(each, Mapping)] if isinstance(values, list) else []


def _first(values: Any) -> Mapping[str, Any]:
    return next(iter(_objects(values)), {})


def _read_position(position: Any, row: int) -> list[tuple[str, float]]:
    """Tokens of a position with their probabilities."""
    found = position.get("top_logprobs", position) if isinstance(position, Mapping) else position
    pairs = list(found.items()) if isinstance(found, Mapping) else []
    if isinstance(found, list) and all(isinstance(each, Mapping) for each in found):
        pairs = [(each.get("token"), each.get("logprob")) for each in found]
    if not pairs:
        raise TokenError(f"row {row}: there are no top_logprobs; ask the server for them (top_logprobs=20)", row=row)
    return [(_check_token(token, row), _probability(logprob, row)) for token, logprob in pairs]


def _check_token(token: Any, row: int) -> str:
    if not isinstance(token, str):
        raise TokenError(f"row {row}: token is {str(token)[:40]!r}; it must be text", row=row)
    return token


def _probability(logprob: Any, row: int) -> float:
    if logprob is None:
        return 0.0
    is_number = isinstance(logprob, int | float | np.floating) and not isinstance(logprob, bool)
    if not is_number or not logprob <= _MAX_LOGPROB:
        text = f"row {row}: logprob is {str(logprob)[:40]!r}; it must be the logarithm of a probability, at most 0"
        raise TokenError(text, row=row)
    return math.exp(max(logprob, -1e4))
