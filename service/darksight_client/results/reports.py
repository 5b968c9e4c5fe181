"""The answer to reported outcomes: the accuracy of the active version."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from darksight_client.results.rows import read_optional

__all__ = ["AccuracyRange", "AccuracyReport", "CertificateVerdict", "Reported", "joined_reports", "read_reported"]


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
        Labels that it is from, and how many more would settle whether the certificate holds.
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
    audit_labels_needed: int
    certificate: CertificateVerdict
    certificate_log_evidence: float


@dataclass(frozen=True, slots=True)
class Reported:
    """Number of outcomes on the server's disk, and the accuracy of the active version without them, if it is known."""

    recorded: int
    accuracy: AccuracyReport | None


def read_reported(message: Any) -> Reported:
    """A Reported from a ReportOutcomesResponse."""
    if not message.HasField("accuracy"):
        return Reported(message.recorded, None)
    found = message.accuracy
    accuracy = AccuracyReport(
        version=found.version,
        estimate=_range(found, "estimate"),
        withheld=found.withheld,
        audited=_range(found, "audited"),
        audit_labels=found.audit_labels,
        audit_labels_needed=found.audit_labels_needed,
        certificate=CertificateVerdict(found.certificate),
        certificate_log_evidence=found.certificate_log_evidence,
    )
    return Reported(message.recorded, accuracy)


def joined_reports(parts: Iterable[Reported]) -> Reported:
    """One Reported from those of the parts of a report."""
    found = list(parts)
    return Reported(sum(part.recorded for part in found), found[-1].accuracy if found else None)


def _range(message: Any, field: str) -> AccuracyRange | None:
    value = read_optional(message, field)
    return None if value is None else AccuracyRange(value.value, value.low, value.high)
