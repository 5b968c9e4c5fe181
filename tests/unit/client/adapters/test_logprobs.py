"""Responses of language models as rows."""

from __future__ import annotations

from typing import Any

import pytest
from darksight_client.adapters.logprobs import logprob_rows

from darksight_core.rows.tokens import TokenError


def chat(*positions: dict[str, float]) -> dict[str, Any]:
    """A chat completion with the log-probabilities of its tokens."""
    content = [
        {
            "token": max(each, key=each.__getitem__),
            "top_logprobs": [{"token": t, "logprob": v} for t, v in each.items()],
        }
        for each in positions
    ]
    return {"choices": [{"message": {"content": "..."}, "logprobs": {"content": content}}]}


class Model:
    """A response as the openai and ollama packages have it."""

    def model_dump(self) -> dict[str, Any]:
        """The response as JSON."""
        return chat({"B": -0.1, "A": -3.0})


def test_objects_of_packages_are_read() -> None:
    """As dictionaries are."""
    assert logprob_rows([Model(), chat({"A": -0.1})], "AB").classes.tolist() == [[1, 0], [0, -1]]


@pytest.mark.parametrize(("position", "predicted"), [(0, 1), (-1, 0), (1, 0)])
def test_the_position_of_the_answer(position: int, predicted: int) -> None:
    """A judge that explains itself first gives its grade last."""
    rows = logprob_rows([chat({"2": -0.1}, {"1": -0.2})], ["1", "2"], position=position)

    assert rows.classes[0, 0] == predicted


@pytest.mark.parametrize("response", [{}, chat(), {"choices": [{"logprobs": None}]}])
def test_a_response_without_log_probabilities_is_refused(response: Any) -> None:
    """The error says what to ask the server for."""
    with pytest.raises(TokenError, match=r"row 1: .*top_logprobs=20") as caught:
        logprob_rows([chat({"A": -0.1}), response], "AB")

    assert caught.value.details["row"] == 1


def test_words_are_passed_on() -> None:
    """What the model writes need not be the name of the class."""
    rows = logprob_rows(
        [chat({"billing": -0.2, " Bill": -2.0})], ["support", "billing"], words={"billing": ["billing", "bill"]}
    )

    assert rows.classes[0].tolist() == [1, -1]
