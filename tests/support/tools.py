"""Programs that some tests need, and how to get one that is missing."""

from __future__ import annotations

import shutil

import pytest

__all__ = ["find_tool", "needs"]

# The Debian package of each program; ./dev test installs them when it may.
_PACKAGES = {
    "amtool": "prometheus-alertmanager",
    "chromium": "chromium",
    "curl": "curl",
    "haproxy": "haproxy",
    "mount": "mount",
    "node": "npm",
    "npm": "npm",
    "openssl": "openssl",
    "prometheus": "prometheus",
    "prometheus-alertmanager": "prometheus-alertmanager",
    "promtool": "prometheus",
    "systemd-analyze": "systemd",
}
_NAMES = {
    "chromium": ("chromium", "chromium-browser", "google-chrome"),
    "haproxy": ("haproxy", "/usr/sbin/haproxy"),
}


def _path(tool: str) -> str | None:
    return next(filter(None, map(shutil.which, _NAMES.get(tool, (tool,)))), None)


def _reason(tool: str) -> str:
    return f"{tool} is not installed; on Debian: apt-get install {_PACKAGES[tool]}"


def needs(tool: str) -> pytest.MarkDecorator:
    """Mark of tests that are skipped without a program."""
    return pytest.mark.skipif(_path(tool) is None, reason=_reason(tool))


def find_tool(tool: str) -> str:
    """Path of a program; without it the test is skipped."""
    path = _path(tool)
    if path is None:
        pytest.skip(_reason(tool))
    return path
