"""What a release says about itself."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from darksight_core.rows.version import __version__
from deploy.release import licence_table, release_notes

ROOT = Path(__file__).parents[2]


def test_the_version_is_in_one_place() -> None:
    """The citation names the version of the package; the build reads it from there."""
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))

    assert cited["version"] == __version__


def test_release_notes_are_the_section_of_the_version() -> None:
    """A version without a section gets what is not released yet; the changelog of this tree has one of the two."""
    changelog = "# Changelog\n\n## [Unreleased]\n\n- new\n\n## [1.0.0] - 2026-01-01\n\n- old\n"

    assert release_notes(changelog, "1.0.0") == "# DarkSight 1.0.0\n\n- old\n"
    assert release_notes(changelog, "1.1.0") == "# DarkSight 1.1.0\n\n- new\n"
    assert "- " in release_notes((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), __version__)


def test_the_list_of_licences_names_every_package() -> None:
    """Names and expressions of licences are listed, and a package without one is an error."""
    known = [
        {"name": "b", "version": "2", "licenses": [{"expression": "MIT OR Apache-2.0"}]},
        {
            "name": "A",
            "version": "1",
            "licenses": [{"license": {"id": "MIT"}}, {"license": {"name": "License :: OSI Approved :: BSD"}}],
        },
    ]

    table = licence_table({"components": known})

    assert table.splitlines()[2:] == ["| A | 1 | BSD, MIT |", "| b | 2 | MIT OR Apache-2.0 |"]
    with pytest.raises(ValueError, match="of c"):
        licence_table({"components": [*known, {"name": "c", "version": "3"}]})
