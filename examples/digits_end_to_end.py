"""Digits from end to end: train a classifier, fit its map, calibrate a gate, score, look, explain.

Run it as it is (`python examples/digits_end_to_end.py`) or cell by cell in an editor that knows `# %%`. Takes half a
minute and leaves everything in `--out`.
"""

# %% What is needed
import argparse
from pathlib import Path

import numpy as np
import torch
from darksight_service.cli.fit import picture
from darksight_service.report.heat_maps import draw_heat_maps
from sklearn.datasets import load_digits

from darksight_core.bundle import read_bundle, write_bundle
from darksight_core.explain import Chain, attack, integrated, log_density
from darksight_core.fit.pipeline import fit_bundle
from darksight_core.gate.certify import Rules, ScoredRows, certify
from darksight_core.predictions import from_arrays
from darksight_core.predictions.split import make_split
from darksight_core.runtime.policy import ScoringPolicy
from darksight_core.runtime.scorer import Scorer

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--out", type=Path, default=Path("digits-example"), help="folder for its files (%(default)s)")
parser.add_argument("--epochs", type=int, default=60, help="epochs of training (%(default)s)")
args = parser.parse_args()
args.out.mkdir(parents=True, exist_ok=True)

# %% A small classifier, trained on a third of the digits; the map is made of what it says about the others
torch.manual_seed(0)
images, labels = load_digits(return_X_y=True)
images = (images / 16.0).astype(np.float32).reshape(-1, 8, 8)
order = np.random.default_rng(0).permutation(len(images))
train, rest = order[:600], order[600:]
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
    logits = classifier(torch.tensor(images[rest])).numpy()
right = logits.argmax(axis=1) == labels[rest]
print(f"accuracy on {len(rest)} unseen digits: {right.mean():.1%}")

# %% The map: one file with everything that scoring needs
shares = (0.5, 0.3, 0.2)
predictions = from_arrays(torch.tensor(logits).softmax(dim=1).numpy(), labels=labels[rest])
report = fit_bundle(predictions, args.out / "fitted.safetensors", shares=shares, overwrite=True)
print(f"KL_sym {report.kl_sym:.4f}, the map agrees with the classifier on {report.acc_teacher:.1%}")
picture(report, args.out / "map.png")

# %% A gate: at most 1% of usual rows are called outliers, 95% are accepted
split = make_split(len(rest), 0, shares)
bundle = read_bundle(args.out / "fitted.safetensors")
held_out = from_arrays(predictions.probs[split.calibrate], labels=labels[rest][split.calibrate])
scored = ScoredRows.of(held_out, Scorer.of(bundle).score(held_out.probs))
found = certify(scored, Rules(alpha=0.01, coverage=0.95, score="msp"), len(bundle.calibration))
write_bundle(args.out / "digits.safetensors", bundle.with_gate(found.gate, found.certificate), overwrite=True)

# %% Scores and decisions for digits that nothing has seen
policy = ScoringPolicy.of(read_bundle(args.out / "digits.safetensors"))
unseen = rest[split.test]
scored = policy.score(predictions.probs[split.test])
accepted = scored.accepted
print(
    f"{accepted.mean():.1%} of {len(unseen)} accepted; right are {right[split.test].mean():.1%} of all "
    f"and {right[split.test][accepted].mean():.1%} of those accepted"
)

# %% Why is the most unusual of them where it is? Which strokes lower its density, and how little would hide it?
# Integrated gradients sum to what they explain if the place moves without jumps, so they are taken at f_p's; an attack
# follows the place that serves.
odd = unseen[[scored.p_value.argmin()]]
chain, smooth = (Chain(classifier, policy.scorer.embedder, place=place) for place in ("refined", "network"))
heat = integrated(smooth, log_density(smooth), images[odd], steps=512)
moved = attack(chain, log_density(chain), policy, images[odd], budget=0.1)
before, after = moved.before, moved.after
seen = f"a {labels[odd][0]}, seen as {moved.before.predicted[0]}"
text = f"{seen}: log P {before.log_density[0]:.2f}, p {before.p_value[0]:.3f}"
print(f"{text}; heat sums to {heat.heat.sum():.3f} of {heat.change[0]:.3f}")
print(
    f"changed by at most {moved.moved[0]:.2f}: seen as {moved.after.predicted[0]}, log P {after.log_density[0]:.2f}, "
    f"p {after.p_value[0]:.3f}"
)
sheet = draw_heat_maps(images[odd], heat.heat, [text], title="integrated gradient of log P(y; θ)", changed=moved.inputs)
sheet.savefig(args.out / "why.png")
print(f"look at {args.out / 'map.png'} and {args.out / 'why.png'}")
