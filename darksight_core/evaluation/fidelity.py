"""How well the student on the map reproduces the watched classifier, the teacher."""

from __future__ import annotations

from dataclasses import dataclass

from numpy.typing import ArrayLike

from darksight_core.evaluation.checks import check_labels, check_rows
from darksight_core.rows.json_record import JsonRecord
from darksight_core.rows.simplex import Floats, kl, kl_sym, kl_sym_of_zeros, total_variation

__all__ = ["Fidelity", "fidelity"]


@dataclass(frozen=True, slots=True)
class Fidelity(JsonRecord):
    """Agreement of student and teacher; divergences are means over rows, in nats.

    Parameters
    ----------
    kl_sym
        Mean KL_sym(π, q), the objective of the fit.
    kl_teacher_student
        Mean KL(π, q): large where the student rules out what the teacher expects.
    kl_student_teacher
        Mean KL(q, π): large where the student expects what the teacher rules out.
    acc_teacher
        Share of rows where student and teacher predict the same class.
    acc_ground
        Share of rows where the student predicts the label; None without labels.
    teacher_acc_ground
        Share of rows where the teacher predicts the label, which `acc_ground` should match; None without labels.
    total_variation
        Mean probability that has to be moved to make q of π, in 0..1.
    kl_sym_of_zeros
        The part of `kl_sym` that comes from probabilities of zero, which are read as 1e-30.
    star_agreement
        Share of rows whose nearest class centre on the map is the class that the teacher predicts; None without a map.
    on_border
        Share of rows on the border of the map, which would lie further out; None without a border.
    """

    kl_sym: float
    kl_teacher_student: float
    kl_student_teacher: float
    acc_teacher: float
    acc_ground: float | None
    teacher_acc_ground: float | None
    total_variation: float
    kl_sym_of_zeros: float
    star_agreement: float | None = None
    on_border: float | None = None


def fidelity(log_pi: Floats, log_q: Floats, labels: ArrayLike | None = None) -> Fidelity:
    """Compare the student with the teacher, and both with labels.

    Ties between classes go to the lowest index on both sides, as in the predictions shown to people. A student that
    cannot separate classes therefore predicts class 0 everywhere and agrees with the teacher as often as the teacher
    predicts class 0.

    Parameters
    ----------
    log_pi
        Log-probabilities of the teacher, (n, K).
    log_q
        Log-probabilities of the student, (n, K).
    labels
        True classes in 0..K-1, (n,).
    """
    log_pi = check_rows("log_pi", log_pi)
    log_q = check_rows("log_q", log_q, log_pi.shape)
    teacher, student = log_pi.argmax(axis=1), log_q.argmax(axis=1)
    truth = None if labels is None else check_labels(labels, *log_pi.shape)
    return Fidelity(
        kl_sym=float(kl_sym(log_pi, log_q).mean()),
        kl_teacher_student=float(kl(log_pi, log_q).mean()),
        kl_student_teacher=float(kl(log_q, log_pi).mean()),
        acc_teacher=float((student == teacher).mean()),
        acc_ground=None if truth is None else float((student == truth).mean()),
        teacher_acc_ground=None if truth is None else float((teacher == truth).mean()),
        total_variation=float(total_variation(log_pi, log_q).mean()),
        kl_sym_of_zeros=float(kl_sym_of_zeros(log_pi, log_q).mean()),
    )
