"""Scoring of new rows."""
