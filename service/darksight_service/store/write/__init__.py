"""Inserts, changes and retention."""
