"""Scoring files of predictions."""
