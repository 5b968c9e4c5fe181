"""No numba, for processes that find this folder on PYTHONPATH: to load it takes a worker 0.9 CPU seconds."""

import sys

# What an import finds here it takes for a module that is not installed.
sys.modules["numba"] = None  # type: ignore[assignment]
