"""Fitting by several processes."""
