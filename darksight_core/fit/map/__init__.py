"""Fitting the map: points and student."""
