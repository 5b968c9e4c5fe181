"""The scoring pass compiled by numba."""
