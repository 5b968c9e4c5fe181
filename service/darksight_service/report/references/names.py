"""What a reference names: a file below the configured folder, an URL of a configured origin, or nothing to be shown.

References come from callers, so everything is refused that is not plainly one of the two. An URL is compared as text
with the configured origins: no parser of ours can then disagree with that of a browser about its host.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

__all__ = ["Target", "resolve"]

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


@dataclass(frozen=True, slots=True)
class Target:
    """What a reference leads to.

    Parameters
    ----------
    kind
        `file`, `url`, or `none` if it is not shown.
    parts
        Folders and name of a file below the configured folder.
    url
        The URL.
    problem
        Why it is not shown.
    """

    kind: Literal["file", "url", "none"]
    parts: tuple[str, ...] = ()
    url: str = ""
    problem: str = ""


def resolve(reference: str, origins: Sequence[str], *, has_folder: bool) -> Target:
    """The target of a reference.

    Parameters
    ----------
    reference
        Value of the tag `reference`.
    origins
        Allowed origins; see `darksight_service.settings.validation.parse_origin`.
    has_folder
        Whether a folder of files is configured.

    >>> resolve("cats/7.png", (), has_folder=True).parts
    ('cats', '7.png')
    >>> resolve("../secret", (), has_folder=True).problem
    'is not a path below the folder of references'
    """
    if any(unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp") for char in reference) or "\\" in reference:
        return Target("none", problem="has characters that no path or URL may have")
    if reference.startswith(("https://", "http://")):
        if any(reference.startswith(f"{origin}/") for origin in origins):
            return Target("url", url=reference)
        return Target("none", problem="is not of an origin in the setting reference_origins")
    if _SCHEME.match(reference):
        return Target("none", problem="is neither a path nor an http(s) URL")
    parts = tuple(reference.split("/"))
    if not all(parts) or any(part in (".", "..") for part in parts):
        return Target("none", problem="is not a path below the folder of references")
    if not has_folder:
        return Target("none", problem="is a path, and the setting reference_dir names no folder")
    return Target("file", parts=parts)
