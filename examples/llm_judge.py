"""A language model as a judge, and a gate that says which of its judgements to act on.

Works with every OpenAI-compatible server that returns log-probabilities: vLLM, llama.cpp, Ollama, OpenAI and others.

    python examples/llm_judge.py questions.jsonl --url http://localhost:8000/v1 --model NAME --classes no,yes

`questions.jsonl` has an object per line with `text`, what the model is asked, and `label`, what the answer should have
been: at least 400 of them. The script asks the model all questions, fits a bundle to a part of the answers, certifies a
threshold on another part, and tries it on the rest. It writes everything to the directory `--out`; answers that are
there are not asked for again. The key of the server is read from the variable OPENAI_API_KEY.
"""

# %% Imports and options
import argparse
import json
import os
import shlex
import subprocess
import sys
import urllib.request
from pathlib import Path

import numpy as np
from darksight_client.adapters.logprobs import logprob_rows

from darksight_core.bundle import read_bundle
from darksight_core.runtime.policy import ScoringPolicy

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("questions", type=Path, help="questions with labels, .jsonl")
parser.add_argument("--url", default="http://localhost:8000/v1", help="address of the server (%(default)s)")
parser.add_argument("--model", required=True, help="name of the language model")
parser.add_argument("--classes", required=True, help="the answers, such as no,yes or A,B,C or 1,2,3,4,5")
parser.add_argument("--accuracy", type=float, default=0.9, help="accuracy to certify (%(default)s)")
parser.add_argument("--out", type=Path, default=Path("judge-example"), help="directory to write (%(default)s)")
args = parser.parse_args()
args.out.mkdir(parents=True, exist_ok=True)
classes = args.classes.split(",")


# %% Ask the judge: one token, and the log-probabilities of the 20 likeliest ones
def ask(text: str) -> dict:
    """The response of the server to a question."""
    system = f"Answer with one word: {', '.join(classes)}."
    body = {
        "model": args.model,
        "messages": [{"role": "system", "content": system}, {"role": "user", "content": text}],
        "max_tokens": 1,
        "temperature": 0,
        "logprobs": True,
        "top_logprobs": 20,
    }
    headers = {"content-type": "application/json"}
    if "OPENAI_API_KEY" in os.environ:
        headers["authorization"] = f"Bearer {os.environ['OPENAI_API_KEY']}"
    request = urllib.request.Request(f"{args.url}/chat/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=120) as response:
        return json.load(response)


questions = [json.loads(line) for line in args.questions.read_text(encoding="utf-8").splitlines() if line.strip()]
answers = args.out / "answers.jsonl"
done = len(answers.read_text(encoding="utf-8").splitlines()) if answers.exists() else 0
with answers.open("a", encoding="utf-8") as file:
    for number, question in enumerate(questions[done:], done):
        file.write(json.dumps({**ask(question["text"]), "id": str(number), "label": question["label"]}) + "\n")
        file.flush()
lines = answers.read_text(encoding="utf-8").splitlines()
print(f"{len(lines)} answers in {answers}")

# %% An answer without one of the words is no judgement: leave it out here. The gate of a service rejects it as INVALID
rows = logprob_rows([json.loads(line) for line in lines], classes)
lines = [line for line, known in zip(lines, rows.known.any(axis=1), strict=True) if known]

# %% Three parts, because a row that was used for one step cannot vouch for the next one
order = np.random.default_rng(0).permutation(len(lines)).tolist()
ends = {"fit": 0.5, "labelled": 0.85, "new": 1.0}
start = 0
for name, share in ends.items():
    end = round(share * len(lines))
    (args.out / f"{name}.jsonl").write_text("".join(lines[row] + "\n" for row in order[start:end]), encoding="utf-8")
    start = end


# %% A bundle, and a threshold: what is accepted is right in so many of 100 cases
def darksight(*arguments: object) -> int:
    """Run a darksight command; returns its status."""
    texts = [str(argument) for argument in arguments]
    print("$", shlex.join(["darksight", *texts]), flush=True)
    return subprocess.run([sys.executable, "-m", "darksight_service.cli", *texts], check=False).returncode


fitted, gated = args.out / "fitted.safetensors", args.out / "judge.safetensors"
if darksight("fit", args.out / "fit.jsonl", "--classes", args.classes, "--out", fitted, "--overwrite"):
    sys.exit(1)
promise = ("--alpha", 0.01, "--target-accuracy", args.accuracy, "--score", "msp")
if darksight("calibrate", fitted, args.out / "labelled.jsonl", *promise, "--out", gated, "--overwrite"):
    sys.exit("the labels do not support this accuracy: see above what they do support, and use --accuracy")

# %% Try it on answers that no step has seen. In production: client.gate("judge", logprob_rows([response], classes))
new = [json.loads(line) for line in (args.out / "new.jsonl").read_text(encoding="utf-8").splitlines()]
rows = logprob_rows(new, classes)
scored = ScoringPolicy.of(read_bundle(gated)).score(rows)
right = np.array([classes[number] for number in scored.predicted]) == [line["label"] for line in new]
accepted = scored.accepted
print(f"{len(new)} new answers: {right.mean():.1%} right; {accepted.mean():.1%} accepted, of these", end=" ")
print(f"{right[accepted].mean():.1%} right" if accepted.any() else "none")
