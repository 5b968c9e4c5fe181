"""The answer to reported outcomes: the accuracy of the active version."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

__all__ = ["AccuracyRange", "AccuracyReport", "CertificateVerdict", "Reported", "joined_reports"]


class CertificateVerdict(IntEnum):
    """Whether accepted rows are as accurate as certified."""

    UNSPECIFIED = 0
    NONE = 1
    OPEN = 2
    KEPT = 3
    BROKEN = 4

    @classmethod
    def _missing_(cls, value: object) -> CertificateVerdict:
        return cls.UNSPECIFIED


@dataclass(frozen=True, slots=True)
class AccuracyRange:
    """An accuracy and its range."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class AccuracyReport:
    """Accuracy of the active version.

    Parameters
    ----------
    version
        Version of the bundle.
    estimate
        Accuracy of the newest rows, estimated without labels; None while it is withheld.
    withheld
        Why it is withheld; empty if it is not.
    audited
        Accuracy of accepted rows from labels of the random audit, with a time-uniform 95% interval; None with too few.
    audit_labels, audit_labels_needed
        Labels that it is from, and how many more would find an accuracy 3 points below the certified one with a
        probability of 80% (without a certificate: give an interval of 4 points); None if no number of labels is enough.
    certificate
        Whether the certificate of the bundle holds.
    certificate_log_evidence
        Natural logarithm of the evidence against the certificate.
    """

    version: str
    estimate: AccuracyRange | None
    withheld: str
    audited: AccuracyRange | None
    audit_labels: int
    audit_labels_needed: int | None
    certificate: CertificateVerdict
    certificate_log_evidence: float


@dataclass(frozen=True, slots=True)
class Reported:
    """Number of outcomes on the server's disk, and the accuracy of the active version without them, if it is known."""

    recorded: int
    accuracy: AccuracyReport | None


def joined_reports(parts: Iterable[Reported]) -> Reported:
    """One Reported from those of the parts of a report."""
    found = list(parts)
    return Reported(sum(part.recorded for part in found), found[-1].accuracy if found else None)
