"""The table at the top of tests/bench/README.md: the most important figures of all sections.

`summarise` reads the saved tables, so a benchmark that is run again updates its own lines and no others. Of a table
that has a column `target`, the rows with a target are included, with the verdict of its unnamed column; of other tables
all rows that match.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from tests.bench.results import Section, Table, cell_text, read_sections, write_sections

__all__ = ["HEADLINES", "Headline", "Line", "lines", "summarise"]

_GOAL = re.compile(r" \(goal ([\d.]+)\)")
_NUMBER = re.compile(r"[-+]?\d[\d,]*\.?\d*(?:e[-+]?\d+)?")


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the summary."""

    section: str
    figure: str
    ours: str
    reference: str = ""
    ratio: str = ""
    target: str = ""
    verdict: str = ""


@dataclass(frozen=True, slots=True)
class Headline:
    """Where lines of the summary come from.

    Parameters
    ----------
    section
        How its heading begins.
    figure
        What is said; `{column}` stands for a cell.
    ours
        Column with our figure.
    table
        First header of the table.
    where
        Cells that a row must have.
    name, reference, beside
        What the reference is, its column, and cells of its row if it is another one.
    ratio
        Column of the ratio; computed if there is none.
    least, most
        Target of the ratio, or of our figure if there is no reference. A figure with `(goal 300)` in its text has
        that as `most`.
    """

    section: str
    figure: str
    ours: str
    table: str
    where: Mapping[str, str] = field(default_factory=dict)
    name: str = ""
    reference: str = ""
    beside: Mapping[str, str] = field(default_factory=dict)
    ratio: str = ""
    least: float | None = None
    most: float | None = None

    def lines(self, name: str, section: Section) -> Iterator[Line]:
        """Lines of a section; LookupError if its tables have changed and nothing matches."""
        table = next((table for table in section.tables() if table.header[0] == self.table), None)
        rows = [] if table is None else [{k: cell_text(v) for k, v in row.items()} for row in table.records()]
        chosen = [row for row in rows if _fits(row, self.where) and row.get("target", "-")]
        if not chosen or self.ours not in chosen[0]:
            raise LookupError(f"{name}: no row for {self.figure!r}; correct HEADLINES of tests/bench/summary.py")
        for row in chosen:
            yield self._line(name, row, next((each for each in rows if _fits(each, self.beside)), row))

    def _line(self, section: str, row: Mapping[str, str], other: Mapping[str, str]) -> Line:
        figure = re.sub(r"\{([^}]*)\}", lambda match: row[match[1]], self.figure)
        if goal := _GOAL.search(figure):
            own = replace(self, figure=_GOAL.sub("", figure), most=float(goal[1]))
            return own._line(section, row, other)
        ours, theirs, ratio = row[self.ours], "", row[self.ratio] if self.ratio else ""
        if self.reference:
            theirs = (other if self.beside else row)[self.reference]
            if not ratio:
                ratio = f"{_number(ours) / _number(theirs):.3g}"
        judged = ratio or ours
        return Line(
            section, figure, ours, f"{theirs} ({self.name})" if theirs else "", ratio,
            row.get("target", self._target()), row[""] if "target" in row else self._verdict(judged),
        )  # fmt: skip

    def _target(self) -> str:
        if self.least is not None:
            return f"at least {self.least:g}"
        return "" if self.most is None else f"at most {self.most:g}"

    def _verdict(self, judged: str) -> str:
        if self.least is not None:
            return "met" if _number(judged) >= self.least else "**missed**"
        return "" if self.most is None else "met" if _number(judged) <= self.most else "**missed**"


def _fits(row: Mapping[str, str], cells: Mapping[str, str]) -> bool:
    return all(row.get(name) == value for name, value in cells.items())


def _number(text: str) -> float:
    """The first number in a text."""
    found = _NUMBER.search(text)
    if found is None:
        raise LookupError(f"there is no number in {text!r}")
    return float(found[0].replace(",", ""))


_LOST = ("lost", "doubled", "wrong")
HEADLINES = (
    Headline(
        "fit: fast against the paper", "CPU s of a fit, {rows}", "CPU s", "rows", {"rows": "mnist_paper"},
        "algorithm as published", "its CPU s", ratio="it against fast",
    ),
    Headline(
        "fit: fast against the paper", "CPU s of a fit, {rows}", "CPU s", "rows", {"rows": "cifar100_resnet56"},
        "algorithm as published", "its CPU s", ratio="it against fast",
    ),
    Headline(
        "fit: fast against the paper", "KL_sym of the map, {rows}", "fast KL_sym (seeds)", "rows",
        {"rows": "mnist_paper"}, "algorithm as published", "published algorithm, 1000 epochs: KL_sym",
    ),
    Headline(
        "fit: cost per row", "CPU us per row, {rows} rows", "CPU us per row", "rows", {"rows": "1,000,000"},
        "10,000 rows", "CPU us per row", {"rows": "10,000"}, "against 10,000",
    ),
    Headline(
        "fit: beside t-SNE and UMAP", "CPU s of a map", "CPU s", "method", {"method": "DarkSight fast"}, "openTSNE",
        "CPU s", {"method": "openTSNE"},
    ),
    *(
        Headline(
            "score: held-out KL_sym", "KL_sym of new rows, {rows}", "served", "rows", {"rows": rows},
            "each row solved", "each row solved", ratio="served / solved",
        )
        for rows in ("mnist_paper", "cifar100_resnet56")
    ),
    *(
        Headline(
            "score: pace on one core", "us per row, calls of {rows per call}", "scorer", "bundle",
            {"bundle": "mnist_paper", "rows per call": rows}, "bare forward pass", "bare forward pass, us per row",
            ratio="scorer / forward, median of 3 runs",
        )
        for rows in ("1", "4096")
    ),
    Headline(
        "score: density of the map", "log density, us per row", "log density in a batch, us per row", "references",
        {"references": "10,000"}, "scikit-learn", "scikit-learn KernelDensity", ratio="ratio",
    ),
    Headline("score: bundle files", "altered bundles that load, {bundle}", "loaded", "bundle", most=0.0),
    Headline(
        "spool: a record on disk", "CPU us to write a call of a row down", "encode and append", "durability",
        {"durability": "process", "rows": "1", "K": "10"}, "SQLite WAL", "encode and SQLite WAL insert", ratio="ratio",
    ),
    Headline(
        "spool: drain into a store", "CPU us to drain a call of a row", "drain, CPU us per record", "rows per record",
        {"rows per record": "1", "K": "10"}, "SELECT from SQLite", "SELECT from SQLite and decode one by one",
        ratio="ratio",
    ),
    Headline(
        "metrics: counting a call", "us to count a call of {rows in a call} rows", "observe() us", "rows in a call",
        {"rows in a call": "256"}, "prometheus_client", "prometheus_client us", ratio="against it",
    ),
    Headline("metrics: a scrape", "ms of a scrape, {format}", "page ms", "format"),
    Headline(
        "store: pace of inserts", "rows/s, {batches}, {database, bare writer}", "Store.insert, rows/s", "batches",
        name="bare writer", reference="bare, rows/s", ratio="ratio (goal 0.5)", least=0.5,
    ),
    Headline(
        "store: history of 10,000,000", "bytes per stored row", "found", "figure",
        {"figure": "bytes per row on disk with all indexes"}, most=200.0,
    ),
    Headline(
        "store: history of 10,000,000", "s to drop a day", "found", "figure", {"figure": "s to drop 1 day"}, most=1.0
    ),
    *(
        Headline(f"faults: {part}", f"rows {what}", what, "calls", most=0.0)
        for part in ("all of them", "database away", "on the embedded")
        for what in _LOST
    ),
    Headline(
        "faults: database away", "p99, ms, while the database is away", "p99 of all calls, ms", "window",
        {"window": "database away"}, "before and after", "p99 of all calls, ms", {"window": "before and after"},
        "against before and after (goal 1.5)", most=1.5,
    ),
    Headline("faults: database away", "{figure}", "found", "figure", most=2.0),
    *(Headline("faults: 10,000 events", f"events {what}", what, "events", most=0.0) for what in ("lost", "doubled")),
    Headline(
        "faults: 10,000 events", "{figure}", "found", "figure", {"figure": "longest time from 202 to SQL, s"}, most=2.0
    ),
    Headline(
        "confidence: finding wrong", "AUGRC x1000 of the chosen score, {file}", "chosen", "file", name="max-softmax",
        reference="msp",
    ),
    Headline(
        "confidence: finding foreign", "AUROC of outliers, mean of pairs", "outlier_score", "pair",
        {"pair": "**mean**"},
        "max-softmax", "msp",
    ),
    *(
        Headline(
            "drift: false alarms", f"% of quiet streams with a false alarm, {short}",
            "quiet streams with a false alarm", "alarm", {"alarm": alarm}, most=1.0,
        )
        for short, alarm in (
            ("one replica", "**any of the three, level 1 %**"),
            ("three replicas", "**mean of 3 replicas, any of the three**"),
        )
    ),
    *(
        Headline(
            "drift: rows to detection after 300 quiet rows", f"median rows to detection, {kind}", kind, "alarm",
            {"alarm": "**any of the three, level 1 %**"}, most=most,
        )
        for kind, most in (("gauss010", 1_000.0), ("class 3 is half", 60.0))
    ),
    Headline(
        "serve: pace", "{figure}, B = {rows}, K = {K}", "ours", "rows", name="no-op echo", reference="echo",
        ratio="ours / echo, median of 3 (range)",
    ),
    Headline(
        "serve: latency", "{figure}, ms", "upper, ms", "figure", {"server": "ours"}, "the lower", "lower, ms",
        ratio="ratio, median of 3 (range)",
    ),
    Headline(
        "serve: five-fold", "goodput, calls/s, callers that {callers that are refused}", "goodput",
        "callers that are refused", name="peak", reference="peak, calls/s", ratio="goodput / peak, median of 3 (range)",
    ),
    *(
        Headline(f"serve: {part}", "{figure}", "found", "figure")
        for part in ("hot swaps", "random and altered", "restarts")
    ),
    Headline("soak: 70% load", "{figure}", "found", "figure"),
    Headline("fuzz: hostile calls", "{figure}", "found", "figure"),
    Headline(
        "serve: beside MLServer", "calls/s of {ours}", "calls/s", "ours", name="MLServer", reference="calls/s (2)",
        ratio="ratio, median of 3 (range)",
    ),
    Headline(
        "capacity: prediction", "{figure} at {load}", "measured", "load", name="predicted", reference="predicted",
        ratio="off by",
    ),
    Headline(
        "scale: 1,000,000 rows", "s to fit, {ranks} ranks of one thread", "wall s", "ranks", {"ranks": "2"}, "one rank",
        "wall s", {"ranks": "1"}, "times one rank", least=1.5,
    ),
    Headline(
        "scale: 10,000,000 rows", "rows/s on Ray, 2 workers", "rows/s", "engine, 2 workers",
        {"engine, 2 workers": "ray"}, "two local processes", "rows/s", {"engine, 2 workers": "local"}, "of local",
        least=0.7,
    ),
    Headline("explorer: API", "p95, ms, {request}", "p95, ms (goal 200)", "request", most=200.0),
    Headline(
        "explorer: 100,000 points", "s until 100,000 points are drawn", "all drawn, s (goal 3)",
        "first points drawn, s", most=3.0,
    ),
    Headline("report:", "MB of a report, {rows of}", "MB", "rows of", most=8.0),
    Headline("report:", "s until a report is open, {rows of}", "open in s (best of 3)", "rows of", most=3.0),
)  # fmt: skip
"""Lines of the summary, in its order. A new benchmark adds what matters most here."""


def lines(sections: Mapping[str, Section]) -> list[Line]:
    """All lines for which there is a section."""
    return [
        line
        for headline in HEADLINES
        for name, section in sections.items()
        if name.startswith(headline.section)
        for line in headline.lines(name, section)
    ]


def summarise(sections: Mapping[str, Section]) -> str:
    """The summary of these sections, as Markdown."""
    found = lines(sections)
    machines = sorted({section.machine for section in sections.values()})
    met, missed = (sum(line.verdict == verdict for line in found) for verdict in ("met", "**missed**"))
    rows = [
        (_link(line.section), line.figure, line.ours, line.reference, line.ratio, line.target, line.verdict)
        for line in found
    ]
    about = (
        "`./dev bench NAME` runs one benchmark, `./dev bench all` runs all; `--quick` runs a short version that is "
        "printed and not saved. This table is made from the sections below, each by its last run; ratios are within "
        f"one run. Machine: {'; '.join(machines)}. Of {met + missed} targets {met} are met."
    )
    others = [_link(name) for name in sections if name not in {line.section for line in found}]
    if others:
        about += f" Sections without a line here: {', '.join(others)}."
    header = ("section", "figure", "ours", "reference", "ratio", "target", "")
    return f"{about}\n\n{Table(header, rows)}"


def _link(section: str) -> str:
    """A heading as a link to it."""
    anchor = re.sub(r"[^\w\- ]", "", section.lower()).replace(" ", "-")
    return f"[{section}](#{anchor})"


if __name__ == "__main__":
    write_sections(read_sections())
