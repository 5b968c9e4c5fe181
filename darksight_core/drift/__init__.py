"""Drift of the traffic, and the accuracy of the classifier under it.

Conformal p-values are uniform while nothing changes, whatever the classifier, so one reference serves every model.

    What is a detector, and which are there? detector       protocol: start, update, evidence, describe, encode, decode
                                             detectors      the list of all
    Has anything changed, since when?        stream         scores, confidence and classes: anytime-valid evidence
                                             urn, betting   its null hypothesis and its bets
                                             witnesses      learned directions: slow and mild changes
                                             row_features   what they are learned from
    Which part of the traffic changed?       segments       tags: anytime-valid, with a level of false discoveries
                                             segment_cells  what a segment is compared with, as counts
                                             explanation    which of the segments that changed explains the others
    What kind of change is it?               verdict        class mix, new content, less sure, surer, mixed
                                             within_class   what changed besides the class mix
                                             class_mix      true class shares without labels
    How accurate is the classifier now?      accuracy       from labels
                                             estimate       without labels, with its back-test
    Is the certificate still true?           audit          random labels, anytime-valid

The error rate of a window statistic holds for one look; an alert that is evaluated every minute needs `stream`.

Not covered: rows that are not exchangeable (retries, one user who sends one row a thousand times); tied scores, which
make p-values conservative and the outlier rate lower than k / (n + 1); a change of bundle, which starts new counts; and
concept drift that leaves the probabilities unchanged, which nothing here can detect.
"""
