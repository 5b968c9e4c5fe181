"""Scoring compiled by numba, a file for each stage: prepare, start, Newton steps, densities, outlier score, rank, gate.

The same formulas as in `map`, `scores` and `gate`, which are the reference; tests hold them equal. Importing a stage
imports numba, which is optional and takes long; `darksight_core.runtime.compilation` does so in the background.
"""
