"""Scores of a prediction: how confident it is, and how usual.

registry     the list of scores
confidence   scores of one row, such as max-softmax, entropy and GEN
learned      P(correct), learned from labelled rows by logistic regression (logistic)
choice       which score finds wrong predictions best
ranks        ranks of a score among known rows, as a smooth function
outlier      the outlier score, a sum of such ranks
"""
