"""Drift of the traffic, and the accuracy of the classifier under it.

Conformal p-values are uniform while nothing changes, whatever the classifier, so one reference serves every model.

    Has anything changed, since when?        stream         scores, confidence and classes: anytime-valid evidence
                                             urn, betting   its null hypothesis and its bets
    Which part of the traffic changed?       segments       tags: anytime-valid, with a level of false discoveries
    What kind of change is it?               verdict        class mix, new content, less sure, surer
                                             class_mix      true class shares without labels
    How far is this window from normal?      psi            p-values
                                             samples        scores (KS) and points of the map (MMD)
                                             class_shares   predicted classes
    Has the outlier rate ever changed?       evidence       anytime-valid
    How accurate is the classifier now?      accuracy       from labels
                                             estimate       without labels, with its back-test
    Is the certificate still true?           audit          random labels, anytime-valid

The error rate of a window statistic holds for one look; an alert that is evaluated every minute needs `stream` or
`evidence`.

Not covered: rows that are not exchangeable (retries, one user who sends one row a thousand times); tied scores, which
make p-values conservative and the outlier rate lower than k / (n + 1); a change of bundle, which starts new counts; and
concept drift that leaves the probabilities unchanged, which nothing here can detect.
"""

from __future__ import annotations

from darksight_core.drift.class_shares import OccupancyTest, occupancy_test
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
from darksight_core.drift.psi import PsiVerdict, p_value_counts, psi, psi_critical, psi_verdict
from darksight_core.drift.samples import TwoSampleTest, ks_critical, ks_distance, mmd_test
from darksight_core.drift.special import chi2_quantile, chi2_tail

__all__ = [
    "Evidence",
    "OccupancyTest",
    "OutlierCounts",
    "OutlierRateTest",
    "PsiVerdict",
    "TwoSampleTest",
    "bet_weights",
    "chi2_quantile",
    "chi2_tail",
    "conformal_rank",
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
]
