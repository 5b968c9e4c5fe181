"""Digits from end to end: train a classifier, fit its map, calibrate a gate, score, explain.

Run the script (`python examples/digits_end_to_end.py`), or run its `# %%` cells one by one in an editor. It takes half
a minute, prints the commands that it runs, and writes all files to the directory `--out`.
"""

# %% Imports and options
import argparse
import json
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits

from darksight_core import Scorer

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--out", type=Path, default=Path("digits-example"), help="directory to write (%(default)s)")
parser.add_argument("--epochs", type=int, default=60, help="epochs of training (%(default)s)")
args = parser.parse_args()
args.out.mkdir(parents=True, exist_ok=True)


def darksight(*arguments: object) -> str:
    """Print and run a darksight command in the output directory; returns what it prints."""
    texts = [str(argument) for argument in arguments]
    print("$", shlex.join(["darksight", *texts]))
    command = [sys.executable, "-m", "darksight_service.cli", *texts]
    return subprocess.run(command, cwd=args.out, check=True, stdout=subprocess.PIPE, text=True).stdout


# %% A small classifier, trained on a third of the digits
torch.manual_seed(0)
images, labels = load_digits(return_X_y=True)
images = (images / 16.0).astype(np.float32).reshape(-1, 8, 8)
order = np.random.default_rng(0).permutation(len(images))
train, fit, new = order[:600], order[600:1500], order[1500:]
classifier = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 48), torch.nn.ReLU(), torch.nn.Linear(48, 10))
optimiser = torch.optim.Adam(classifier.parameters(), lr=3e-3)
for _ in range(args.epochs):
    for batch in torch.randperm(len(train)).split(64):
        optimiser.zero_grad()
        rows = train[batch.numpy()]
        torch.nn.functional.cross_entropy(classifier(torch.tensor(images[rows])), torch.tensor(labels[rows])).backward()
        optimiser.step()
classifier.eval()
with torch.no_grad():
    logits = classifier(torch.tensor(images)).numpy()
right = logits.argmax(axis=1) == labels
print(f"accuracy on {len(fit) + len(new)} digits that it was not trained on: {right[order[600:]].mean():.1%}")

# %% The map of its predictions, in one file with everything that scoring needs
np.savez(args.out / "predictions.npz", logits=logits[fit], labels=labels[fit])
darksight("fit", "predictions.npz", "--out", "fitted.safetensors", "--overwrite", "--plot", "map.png")

# %% A gate: flag at most 1% of usual rows as outliers, accept 95% of the rows
rules = ("--alpha", 0.01, "--coverage", 0.95, "--score", "msp")
darksight("calibrate", "fitted.safetensors", "predictions.npz", "--held-out", *rules, "--out", "digits.safetensors",
          "--overwrite")  # fmt: skip

# %% Scores and decisions for new digits
np.savez(args.out / "new.npz", logits=logits[new])
darksight("score", "digits.safetensors", "new.npz", "--out", "scores.npz", "--overwrite")
scores = np.load(args.out / "scores.npz")
accepted = scores["decision"] == "accept"
print(
    f"{accepted.mean():.1%} of {len(new)} new digits accepted; accuracy is {right[new].mean():.1%} of all "
    f"and {right[new][accepted].mean():.1%} of the accepted ones"
)

# %% The same scores in Python
probs = torch.tensor(logits[new]).softmax(dim=1).numpy()
scored = Scorer.load(args.out / "digits.safetensors").score(probs)
np.testing.assert_allclose(scored.p_value, scores["p_value"], atol=0.01)

# %% Explain the most unusual digit: which strokes lower its density, and how small a change hides it?
# Integrated gradients add up to the explained change if the point moves without jumps, as that of the network f_p does.
odd = new[[scored.p_value.argmin()]]
np.savez(args.out / "odd.npz", inputs=images[odd])
program = torch.export.export(classifier, (torch.tensor(images[:2]),), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
torch.export.save(program, args.out / "classifier.pt2")
heat = ("--method", "integrated", "--point", "network", "--steps", 512)
attack = ("--attack", "in", "--budget", 0.1)
answer = darksight("explain", "digits.safetensors", "classifier.pt2", "odd.npz", *heat, *attack, "--out", "why.png",
                   "--overwrite", "--json")  # fmt: skip
row = json.loads(answer)["rows"][0]
print(f"a {labels[odd][0]}, predicted {row['predicted']}: log P {row['log_density']:.2f}, p {row['p_value']:.3f}")
print(
    f"changed by at most {row['moved']:.2f}: predicted {row['after_predicted']}, log P {row['after_log_density']:.2f}, "
    f"p {row['after_p_value']:.3f}"
)
print(f"look at {args.out / 'map.png'} and {args.out / 'why.png'}")
