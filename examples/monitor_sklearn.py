"""Monitoring a scikit-learn classifier: a service on this machine, its gate in the request path, outcomes, drift.

Run the script (`python examples/monitor_sklearn.py`), or run its `# %%` cells one by one in an editor. It takes half a
minute, prints the commands that it runs, and writes all files to the directory `--out`. The service stops at the end.
"""

# %% Imports and options
import argparse
import math
import re
import shlex
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import numpy as np
from darksight_client import Client
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--out", type=Path, default=Path("monitor-example"), help="directory to write (%(default)s)")
parser.add_argument("--calls", type=int, default=200, help="calls of each kind of traffic (%(default)s)")
args = parser.parse_args()
args.out.mkdir(parents=True, exist_ok=True)


def darksight(*arguments: object) -> list[str]:
    """Print a darksight command; returns it as a process needs it."""
    texts = [str(argument) for argument in arguments]
    print("$", shlex.join(["darksight", *texts]), flush=True)
    return [sys.executable, "-m", "darksight_service.cli", *texts]


# %% The classifier in production, and its predictions for digits that it was not trained on
images, labels = load_digits(return_X_y=True)
images = images / 16.0
order = np.random.default_rng(0).permutation(len(images))
train, fit, new = order[:400], order[400:1600], order[1600:]
classifier = LogisticRegression(max_iter=500).fit(images[train], labels[train])
np.savez(args.out / "predictions.npz", probs=classifier.predict_proba(images[fit]), labels=labels[fit])

# %% Its map, and a gate: flag at most 1% of usual rows as outliers, accept 95% of the rows
fitted, bundle = args.out / "fitted.safetensors", args.out / "digits.safetensors"
predictions, rules = args.out / "predictions.npz", ("--alpha", 0.01, "--coverage", 0.95, "--score", "msp")
subprocess.run(darksight("fit", predictions, "--split", "0.5,0.4,0.1", "--out", fitted, "--overwrite"), check=True)
subprocess.run(
    darksight("calibrate", fitted, predictions, "--held-out", *rules, "--out", bundle, "--overwrite"), check=True
)

# %% A service on loopback, on free ports
log = args.out / "serve.log"
models = [f"--model={name}={bundle}" for name in ("digits", "digits-noisy")]
ports = ("--grpc-port", 0, "--http-port", 0, "--explorer-port", 0)
with log.open("w") as file:
    command = darksight("serve", "--data-dir", args.out / "data", "--workers", 1, *ports, *models)
    service = subprocess.Popen(command, stderr=file)
try:
    where = None
    while where is None:
        if service.poll() is not None:
            sys.exit(f"the service did not start; see {log}")
        time.sleep(0.1)
        where = re.search(r"gRPC (\S+), metrics and health on ([^\s,\"]+)", log.read_text(encoding="utf-8"))
    target, url = where.groups()

    # %% The gate in the request path: act on the accepted rows. When the right classes are known, report them
    unseen = new[: args.calls]
    noise = np.random.default_rng(1).normal(scale=0.5, size=(len(unseen), 64))
    traffic = {"digits": images[unseen], "digits-noisy": np.clip(images[unseen] + noise, 0.0, 1.0)}
    with Client(target, gate_timeout_seconds=60.0) as client:
        for model, inputs in traffic.items():
            answers = [client.gate(model, row) for row in classifier.predict_proba(inputs)]
            right = classifier.predict(inputs) == labels[unseen]
            accepted = np.array([answer.accepted for answer in answers])
            client.report(model, [answer.prediction_id for answer in answers], labels[unseen].tolist())
            print(
                f"{model}: {accepted.mean():.1%} of {len(inputs)} accepted; accuracy is {right.mean():.1%} of all and "
                f"{right[accepted].mean():.1%} of the accepted ones"
            )

    # %% Drift: the service bets on stored rows. By Ville's inequality, 1% of versions ever have an alarm without drift
    tested = ()
    while sum(map(float, tested)) < sum(map(len, traffic.values())):
        time.sleep(0.1)
        with urllib.request.urlopen(f"{url}/metrics", timeout=30) as page:
            metrics = page.read().decode()
        tested = re.findall(r"^darksight_drift_tested_rows\{.*\} (\S+)$", metrics, re.M)
    evidence = re.findall(r'^darksight_drift_log_evidence\{.*model="([^"]+)".*\} (\S+)$', metrics, re.M)
    limit = math.log(350)
    for model in traffic:
        value = max(float(value) for name, value in evidence if name == model)
        result = "drift" if value >= limit else "no drift"
        print(f"{model}: evidence e^{value:.1f}, limit e^{limit:.1f}: {result}")
    counts = r'^darksight_decisions_total\{.*decision="(\w+)".*model="([^"]+)".*reason="(\w+)".*\} (\S+)$'
    for decision, model, reason, count in re.findall(counts, metrics, re.M):
        if float(count) > 0.0:
            print(f"{model}: {decision} {reason} {float(count):.0f}")
finally:
    service.terminate()
    service.wait()
