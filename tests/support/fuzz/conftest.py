"""Fuzz targets are no tests: they need atheris, which lives in a venv of its own."""

collect_ignore_glob = ["*.py"]
