"""Results of benchmarks: sections are saved one by one, and the page says which are older than their code."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.bench import results
from tests.bench.__main__ import FULL, QUICK, benches
from tests.bench.results import (
    CHANGED,
    FIGURES,
    MEASURED,
    README,
    Section,
    Table,
    commit,
    fingerprint,
    machine,
    page,
    put_between,
    read_sections,
    save,
)

TARGETS = Table(
    ("figure", "found", "target", ""),
    [("lost", 0, 0, "met"), ("slowest, ms", 116, "", ""), ("late", 3, "at most 2", "**missed**")],
)


def test_a_section_that_is_saved_again_leaves_the_others_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the machine, the commit and the hash of the code that it measured."""
    shutil.copytree(FIGURES, tmp_path / "figures")
    monkeypatch.setattr(results, "README", tmp_path / "README.md")
    monkeypatch.setattr(results, "FIGURES", tmp_path / "figures")
    before, name = read_sections(), "serve: latency"

    save(name, TARGETS)

    after = read_sections()
    assert {**before, name: after[name]} == after
    saved = after[name]
    assert (saved.machine, saved.commit, saved.code) == (machine(), commit(), fingerprint("serve"))
    assert "| [serve: latency](#serve-latency) | 0 of 1 | " in (tmp_path / "README.md").read_text()


def test_a_quick_run_is_not_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its figures are printed."""
    monkeypatch.setattr(results, "README", tmp_path / "README.md")
    monkeypatch.setattr(results, "FIGURES", tmp_path / "figures")
    monkeypatch.setattr(results, "is_quick", True)

    save("serve: latency", TARGETS)

    assert list(tmp_path.iterdir()) == []


def test_a_section_older_than_its_code_says_so() -> None:
    """In the table of sections and under its heading; a section that has just been measured does not."""
    new = Section("big", 1.0, ("Text.",), "c3d51d5", fingerprint("drift"))

    assert CHANGED not in page({"drift: a": new})
    old = page({"drift: a": replace(new, code="0" * 12)})
    assert f"Measured at c3d51d5; {CHANGED}." in old
    assert old.count(CHANGED) == 2


def test_the_hash_follows_the_code(tmp_path: Path) -> None:
    """Any changed byte or name of a file that the benchmark measures gives another hash."""
    folder = tmp_path / MEASURED["drift"][0]
    folder.mkdir(parents=True)
    found = []
    for name, text in (("a.py", "1"), ("a.py", "2"), ("b.py", "2"), ("notes.txt", "3")):
        (folder / name).write_text(text)
        found.append(fingerprint("drift", tmp_path))

    assert len(set(found)) == 3
    assert found[2] == found[3]


def test_folders_that_are_measured_exist() -> None:
    """Otherwise a moved folder would never look changed; and every saved section belongs to a benchmark."""
    root = Path(results.__file__).parents[2]
    assert [each for folders in MEASURED.values() for each in folders if not any((root / each).rglob("*.py"))] == []
    assert {name.partition(":")[0] for name in read_sections()} <= set(MEASURED)
    assert set(benches()) == set(MEASURED)
    assert set(QUICK) | set(FULL) <= set(benches())


def test_the_readme_has_the_saved_sections() -> None:
    """python -m tests.bench.results writes it again; whether the code has changed since is not compared here."""
    found, expected = (
        text.replace(f"; {CHANGED}", "").replace(CHANGED, "")
        for text in (README.read_text(encoding="utf-8"), page(read_sections()))
    )

    assert found == expected


def test_a_table_with_two_equal_headers_is_refused() -> None:
    """Figures are found by their header."""
    with pytest.raises(ValueError, match="different headers"):
        Table(("a", "a"), [(1, 2)])


def test_text_between_markers_is_replaced(tmp_path: Path) -> None:
    """And a file without them is not touched."""
    path = tmp_path / "a.md"
    path.write_text("before\n<!-- x -->\nold\n<!-- end of x -->\nafter\n")

    put_between(path, "x", "new")

    assert path.read_text() == "before\n<!-- x -->\nnew\n<!-- end of x -->\nafter\n"
    with pytest.raises(ValueError, match="no markers"):
        put_between(path, "y", "new")
