"""The limit of open files, which every connection counts against."""

from __future__ import annotations

import resource
from contextlib import suppress

__all__ = ["raise_descriptor_limit"]

# More than any process here needs; some programs visit every possible descriptor.
_WANTED = 65_536


def raise_descriptor_limit() -> None:
    """Raise the limit of open files of this process, and of children that it starts, as far as that is permitted."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _WANTED if hard == resource.RLIM_INFINITY else min(_WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        # macOS has a lower limit, which it does not report.
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
