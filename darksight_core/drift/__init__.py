"""Is the traffic drifting? Window distances for a dashboard, and evidence that may wake someone.

Conformal p-values are uniform while nothing changes, whatever the classifier, so one reference serves every model. Two
kinds of question are asked of them, and they deserve different trust.

**How far is this window from normal?** `psi` on counts of p-values, `ks_distance` and `wasserstein` on scores,
`mmd_test` on points of the map, `occupancy_test` on predicted classes. Each error rate holds for one look; whoever
looks every minute will be alarmed every day. Critical values shrink like 1/n, so no fixed limit suits all windows: the
customary PSI of 0.1 is passed by 40 % of undisturbed windows of 100 rows. `psi_verdict` therefore asks for
significance, for a practical effect and for enough rows, all three. What stays below its floor, such as twice as many
rows in the lowest tenth of p-values (PSI 0.08), is left to the evidence below.

**Has the outlier rate ever left its calibrated value?** A non-negative martingale M that starts at 1 reaches 1/a with
probability at most a, over all time and however often it is read (Ville). The trap is the null hypothesis. A threshold
calibrated on n rows at level α with rank k = ⌊α (n + 1)⌋ has a rate π that is itself random, π ~ Beta(k, n + 1 - k);
a test that takes π = α for granted gives 44 % false alarms over 50,000 rows where 1 % was promised (n = 2,000,
α = 0.01). `OutlierRateTest` runs two honest tests and alarms when either does:

    Polya     averages over π: P(next is an outlier | S of t were) = (k + S) / (n + 1 + t), against a Beta(1, 20)
              mixture. The likelihood ratio is exact and quick for large jumps, but in a long stream it takes a small
              excess for a property of the calibration set. It also notices a rate that falls.
    PAC       takes π <= p0, a bound that fails for a share δ of calibration sets, and bets on rates above it. Slower,
              but its power against a small excess keeps growing.

Both read nothing but the two counts S and t, so the counts of replicas are added and give the evidence one server would
have. `ChangeDetector` answers a third question, when did it change, with a bound on how often it cries wolf per row
instead of ever; its values add up across replicas, too, because M minus the rows seen has mean at most 0 on each.

What the guarantees do not cover: rows that are not exchangeable (retries, one user sending one row a thousand times);
tied scores, which make p-values conservative and the rate lower than k / (n + 1); a change of bundle, which starts new
counts; and concept drift that leaves the probabilities alone, which nothing here can see.
"""

from __future__ import annotations

from darksight_core.drift.detectors import (
    AdaptiveLevel,
    ChangeDetector,
    Detector,
    detector_path,
)
from darksight_core.drift.evidence import (
    Evidence,
    OutlierCounts,
    OutlierRateTest,
    bet_weights,
    conformal_rank,
    pac_log_evidence,
    pac_rate,
    polya_log_evidence,
    ville_threshold,
)
from darksight_core.drift.special import (
    chi2_quantile,
    chi2_tail,
)
from darksight_core.drift.windows import (
    Kernel,
    OccupancyTest,
    PsiVerdict,
    TwoSampleTest,
    ks_critical,
    ks_distance,
    mmd_test,
    occupancy_test,
    p_value_counts,
    psi,
    psi_critical,
    psi_verdict,
    wasserstein,
)

__all__ = [
    "AdaptiveLevel",
    "ChangeDetector",
    "Detector",
    "Evidence",
    "Kernel",
    "OccupancyTest",
    "OutlierCounts",
    "OutlierRateTest",
    "PsiVerdict",
    "TwoSampleTest",
    "bet_weights",
    "chi2_quantile",
    "chi2_tail",
    "conformal_rank",
    "detector_path",
    "ks_critical",
    "ks_distance",
    "mmd_test",
    "occupancy_test",
    "p_value_counts",
    "pac_log_evidence",
    "pac_rate",
    "polya_log_evidence",
    "psi",
    "psi_critical",
    "psi_verdict",
    "ville_threshold",
    "wasserstein",
]
