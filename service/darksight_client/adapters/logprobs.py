"""Responses of language models as rows: the log-probabilities of answer tokens become those of classes.

Works for classifiers, judges ("yes" or "no", "A" or "B", "1" to "5") and routers whose answer is one of a few words.
Ask the server for the log-probabilities of the likeliest tokens and for no more tokens than the answer has:

    OpenAI, vLLM, llama.cpp, Ollama, chat      logprobs=True, top_logprobs=20, max_tokens=1
    the same, completions                      logprobs=20, max_tokens=1
    llama.cpp /completion                      n_probs=20, n_predict=1
    Ollama /api/chat and /api/generate         logprobs=true, top_logprobs=20

A log-probability says how likely the model is to write a token, not how likely the answer is to be right. A bundle
calibrated on labelled rows says that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from darksight_core.rows.partial import TopRows
from darksight_core.rows.tokens import ClassTokens, TokenError, answer_positions

__all__ = ["logprob_rows"]


def logprob_rows(
    responses: Sequence[Any],
    class_names: Sequence[str],
    *,
    words: Mapping[str, str | Sequence[str]] | None = None,
    position: int = 0,
    k: int | None = None,
) -> TopRows:
    """Rows for `Client.score`, `Client.gate` and `Scorer.score`, one for each response.

    Parameters
    ----------
    responses
        Responses as dictionaries, or as objects of the `openai` or `ollama` package.
    class_names
        The classes of the bundle, such as `client.model(name).class_names`. A token stands for a class if it is its
        name, without regard to case and to blanks around it.
    words
        What the model writes for a class, if that is not its name: one word or several, by class. A word that is
        several tokens of the model is given by the first of them.
    position
        Which token of the answer names the class: 0 is the first, -1 the last.
    k
        How many tokens the server was asked for, which is the resolution of the rows. Default: the largest number of
        tokens in a response.

    Raises
    ------
    TokenError
        If a response has no log-probabilities at this position.

    >>> tokens = [{"token": token, "logprob": value} for token, value in (("Yes", -0.1), (" yes", -3.0), ("No", -4.0))]
    >>> chat = {"choices": [{"logprobs": {"content": [{"token": "Yes", "logprob": -0.1, "top_logprobs": tokens}]}}]}
    >>> rows = logprob_rows([chat], ["no", "yes"])
    >>> rows.classes.tolist(), rows.log_probabilities.round(2).tolist()
    ([[1, 0, -1]], [[-0.05, -4.0, -inf]])
    """
    found = []
    for row, response in enumerate(responses):
        positions = answer_positions(response.model_dump() if hasattr(response, "model_dump") else response)
        if not -len(positions) <= position < len(positions):
            text = f"row {row}: the response has log-probabilities of {len(positions)} tokens, none at {position}"
            raise TokenError(f"{text}; ask the server for them (top_logprobs=20)", row=row)
        found.append(positions[position])
    return ClassTokens(class_names, words).rows(found, k)
