"""Scores of a prediction: confidence, outlier score, learned probability of being correct."""
