"""The summary of benchmarks: it is taken from the sections, follows them, and says when it cannot."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.bench import results
from tests.bench.__main__ import QUICK, benches
from tests.bench.results import FIGURES, README, Section, Table, machine, put_between, read_sections, save
from tests.bench.summary import Headline, Line, lines, summarise

TARGETS = Table(
    ("figure", "found", "target", ""),
    [("lost", 0, 0, "met"), ("slowest, ms", 116, "", ""), ("late", 3, 0, "**missed**")],
)
PACE = Table(("rows", "ours", "theirs", "others"), [("1", "20", "1,000", 10), ("2", "5", "4", 8)])


def section(*parts: str | Table) -> Section:
    """A section with these parts."""
    return Section("big", 1.0, parts)


def test_rows_with_a_target_bring_their_verdict() -> None:
    """Others of such a table are left out."""
    found = list(Headline("a", "{figure}", "found", "figure").lines("a: b", section("Text.", TARGETS, "More.")))

    assert found == [
        Line("a: b", "lost", "0", target="0", verdict="met"),
        Line("a: b", "late", "3", "", "", "0", "**missed**"),
    ]


def test_ratios_are_computed_and_held_against_the_target() -> None:
    """From another column, and from another row."""
    first = Headline("a", "pace of {rows}", "ours", "rows", {"rows": "1"}, "others", "others", least=2.5)
    other = Headline("a", "pace", "ours", "rows", {"rows": "1"}, "two", "ours", {"rows": "2"}, most=4.0)

    assert list(first.lines("a", section(PACE))) == [
        Line("a", "pace of 1", "20", "10 (others)", "2", "at least 2.5", "**missed**")
    ]
    assert list(other.lines("a", section(PACE))) == [Line("a", "pace", "20", "5 (two)", "4", "at most 4", "met")]


def test_a_row_with_a_goal_of_its_own_is_judged_by_it() -> None:
    """Others are judged by the target of the headline."""
    table = Table(("request", "ms"), [("map", "250"), ("segments (goal 300)", "250")])

    found = list(Headline("a", "ms, {request}", "ms", "request", most=200.0).lines("a", section(table)))

    assert found == [
        Line("a", "ms, map", "250", target="at most 200", verdict="**missed**"),
        Line("a", "ms, segments", "250", target="at most 300", verdict="met"),
    ]


@pytest.mark.parametrize(
    "headline",
    [
        Headline("a", "gone", "ours", "rows", {"rows": "7"}),
        Headline("a", "renamed", "mine", "rows"),
    ],
    ids=lambda headline: headline.figure,
)
def test_a_section_that_changed_its_form_is_named(headline: Headline) -> None:
    """Rather than a summary from which a figure has silently gone."""
    with pytest.raises(LookupError, match=r"^a: .*summary\.py"):
        list(headline.lines("a", section(PACE)))


def test_a_section_that_is_saved_again_changes_its_lines_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Saving a section leaves the others as they are, and rewrites the summary."""
    shutil.copytree(FIGURES, tmp_path / "figures")
    monkeypatch.setattr(results, "README", tmp_path / "README.md")
    monkeypatch.setattr(results, "FIGURES", tmp_path / "figures")
    before, name = read_sections(), "serve: restarts of one of two replicas"

    save(name, TARGETS)

    after = read_sections()
    assert {**before, name: after[name]} == after
    changed = {line for line in lines(after) if line not in lines(before)}
    assert {(line.section, line.figure) for line in changed} == {(name, "lost"), (name, "late")}
    assert machine() == after[name].machine
    assert (
        "[serve: restarts of one of two replicas](#serve-restarts-of-one-of-two-replicas) | late | 3"
        in (tmp_path / "README.md").read_text()
    )


def test_a_quick_run_is_not_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its figures are printed."""
    monkeypatch.setattr(results, "README", tmp_path / "README.md")
    monkeypatch.setattr(results, "FIGURES", tmp_path / "figures")
    monkeypatch.setattr(results, "is_quick", True)

    save("serve: restarts", TARGETS)

    assert list(tmp_path.iterdir()) == []


def test_the_readme_has_the_summary_of_the_saved_sections() -> None:
    """python -m tests.bench.summary writes it anew."""
    expected = f"# Benchmarks\n\n{summarise(read_sections())}"

    assert README.read_text(encoding="utf-8").split("\n## ")[0].strip() == expected


def test_every_section_is_in_the_summary() -> None:
    """By its figures or by name; and quick arguments are for benchmarks that exist."""
    sections = {**read_sections(), "another: one": section("Text.")}
    text = summarise(sections)

    assert [name for name in sections if f"[{name}](#" not in text] == []
    assert "Sections without a line here" in text
    assert set(QUICK) <= set(benches())


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
