"""Monitoring a scikit-learn classifier: a service on this machine, its gate in the request path, outcomes, drift.

Run it as it is (`python examples/monitor_sklearn.py`) or cell by cell in an editor that knows `# %%`. Takes half a
minute and leaves everything in `--out`; the service ends with it.
"""

# %% What is needed
import argparse
import re
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import numpy as np
from darksight_client import Client
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from darksight_core.bundle import read_bundle, write_bundle
from darksight_core.drift import ville_threshold
from darksight_core.fit.pipeline import fit_bundle
from darksight_core.gate.certify import Rules, ScoredRows, certify
from darksight_core.predictions import from_arrays
from darksight_core.predictions.split import make_split
from darksight_core.runtime.scorer import Scorer

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--out", type=Path, default=Path("monitor-example"), help="folder for its files (%(default)s)")
parser.add_argument("--calls", type=int, default=200, help="calls of each kind of traffic (%(default)s)")
args = parser.parse_args()
args.out.mkdir(parents=True, exist_ok=True)

# %% The classifier that is in production; its map is made of predictions for digits it was not trained on
images, labels = load_digits(return_X_y=True)
images = images / 16.0
order = np.random.default_rng(0).permutation(len(images))
train, rest = order[:600], order[600:]
classifier = LogisticRegression(max_iter=500).fit(images[train], labels[train])
shares = (0.5, 0.3, 0.2)
predictions = from_arrays(classifier.predict_proba(images[rest]), labels=labels[rest])
fit_bundle(predictions, args.out / "fitted.safetensors", shares=shares, overwrite=True)

# %% Its gate: at most 1% of usual rows are outliers, 95% are accepted
split = make_split(len(rest), 0, shares)
bundle = read_bundle(args.out / "fitted.safetensors")
held_out = from_arrays(predictions.probs[split.calibrate], labels=labels[rest][split.calibrate])
scored = ScoredRows.of(held_out, Scorer.of(bundle).score(held_out.probs))
found = certify(scored, Rules(alpha=0.01, coverage=0.95, score="msp"), len(bundle.calibration))
write_bundle(args.out / "digits.safetensors", bundle.with_gate(found.gate, found.certificate), overwrite=True)

# %% A service on loopback, on any free ports
log = args.out / "serve.log"
models = [f"--model={name}={args.out / 'digits.safetensors'}" for name in ("digits", "digits-noisy")]
command = [sys.executable, "-m", "darksight_service", "serve", "--data-dir", str(args.out / "data"), "--workers", "1"]
with log.open("w") as file:
    service = subprocess.Popen(
        [*command, "--grpc-port", "0", "--http-port", "0", "--explorer-port", "0", *models], stderr=file
    )
try:
    where = None
    while where is None:
        if service.poll() is not None:
            sys.exit(f"the service did not start; see {log}")
        time.sleep(0.1)
        where = re.search(r"gRPC (\S+), metrics and health on ([^\s,]+)", log.read_text(encoding="utf-8"))
    target, url = where.groups()

    # %% The gate in the request path: act on what it accepts. Later, when the right classes are known, report them
    unseen = rest[split.test][: args.calls]
    noise = np.random.default_rng(1).normal(scale=0.35, size=(len(unseen), 64))
    traffic = {"digits": images[unseen], "digits-noisy": np.clip(images[unseen] + noise, 0.0, 1.0)}
    with Client(target, timeout_seconds=60.0) as client:
        for model, shown in traffic.items():
            answers = [client.gate(model, row) for row in classifier.predict_proba(shown)]
            right = classifier.predict(shown) == labels[unseen]
            accepted = np.array([answer.accepted for answer in answers])
            client.report(model, [answer.prediction_id for answer in answers], labels[unseen].tolist())
            print(
                f"{model}: {accepted.mean():.1%} of {len(shown)} accepted; right are {right.mean():.1%} of all and "
                f"{right[accepted].mean():.1%} of those accepted"
            )

    # %% Has the traffic drifted? The service counts evidence; beyond the threshold it is an alarm
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as page:
        metrics = page.read().decode()
    limit = ville_threshold(0.01)
    for model, value in re.findall(r'^darksight_drift_evidence\{model="([^"]+)".*\} (\S+)$', metrics, re.M):
        verdict = "drift" if float(value) >= limit else "no drift"
        print(f"{model}: evidence e^{float(value):.1f} against e^{limit:.1f}: {verdict}")
    counts = r'^darksight_decisions_total\{.*decision="(\w+)".*model="([^"]+)".*reason="(\w+)".*\} (\S+)$'
    for decision, model, reason, count in re.findall(counts, metrics, re.M):
        if float(count) > 0.0:
            print(f"{model}: {decision} {reason} {float(count):.0f}")
finally:
    service.terminate()
    service.wait()
