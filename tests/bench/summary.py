"""The table on top of tests/bench/README.md: the figures of all sections that matter most, taken from the sections.

No figure is written down twice by hand: `summarise` reads what benchmarks saved, so that a part that is run again
brings its own lines up to date and no others. Of a table that `HEADLINES` names, rows with a target are here if it has
a column `target`, with the verdict of its unnamed column; of other tables all rows that fit.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tests.bench.results import markdown, read_sections, read_table, write_readme

__all__ = ["HEADLINES", "Headline", "Line", "lines", "summarise"]

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
        Column with our figure; without a table, a pattern whose group is the figure.
    table
        First header of the table; empty for figures in the text.
    where
        Cells that a row must have.
    name, reference, beside
        What the reference is, its column, and cells of its row if it is another one.
    ratio
        Column of the ratio; computed if there is none.
    least, most
        Target of the ratio, or of our figure if there is no reference.
    """

    section: str
    figure: str
    ours: str
    table: str = ""
    where: Mapping[str, str] = field(default_factory=dict)
    name: str = ""
    reference: str = ""
    beside: Mapping[str, str] = field(default_factory=dict)
    ratio: str = ""
    least: float | None = None
    most: float | None = None

    def lines(self, section: str, text: str) -> Iterator[Line]:
        """Of a section; LookupError if it has changed so much that nothing is found."""
        if not self.table:
            found = re.search(self.ours, text)
            if found is None:
                raise LookupError(f"{section}: nothing like {self.ours!r}; mend HEADLINES of tests/bench/summary.py")
            yield Line(section, self.figure, found[1], target=self._target(), verdict=self._verdict(found[1]))
            return
        rows = read_table(text, self.table)
        chosen = [row for row in rows if _fits(row, self.where) and row.get("target", "-")]
        if not chosen or self.ours not in chosen[0]:
            raise LookupError(f"{section}: no row for {self.figure!r}; mend HEADLINES of tests/bench/summary.py")
        for row in chosen:
            yield self._line(section, row, next((each for each in rows if _fits(each, self.beside)), row))

    def _line(self, section: str, row: Mapping[str, str], other: Mapping[str, str]) -> Line:
        figure = re.sub(r"\{([^}]*)\}", lambda match: row[match[1]], self.figure)
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
        "algorithm as published", "CPU s (2)", ratio="against fast",
    ),
    Headline(
        "fit: fast against the paper", "CPU s of a fit, {rows}", "CPU s", "rows", {"rows": "cifar100_resnet56"},
        "algorithm as published", "CPU s (2)", ratio="against fast",
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
    Headline(
        "metrics: a scrape", "ms of a scrape, {format}", "render ms", "format", name="prometheus_client's encoder",
        reference="with prometheus_client's encoder ms", ratio="against it",
    ),
    Headline(
        "store: pace of inserts", "rows/s, {batches}, {database, bare writer}", "Store.insert, rows/s", "batches",
        name="bare writer", reference="bare, rows/s", ratio="ratio (goal 0.5)", least=0.5,
    ),
    Headline("store: history of 10,000,000", "bytes per stored row", r"([\d.]+) bytes per row on disk", most=200.0),
    Headline("store: history of 10,000,000", "s to drop a day", r"Dropping 1 day: ([\d.]+) s", most=1.0),
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
    Headline("faults: database away", "time to catch up / time away", r"return, ([\d.]+) of the outage", most=2.0),
    Headline(
        "confidence: finding wrong", "AUGRC x1000 of the chosen score, {file}", "chosen", "file", name="max-softmax",
        reference="msp",
    ),
    Headline(
        "confidence: finding foreign", "AUROC of outliers, mean of pairs", "combined", "pair", {"pair": "**mean**"},
        "max-softmax", "msp",
    ),
    *(
        Headline(
            "drift: points to detection", f"% of quiet streams with a false alarm, {short}",
            "quiet streams of 10,000 rows with a false alarm", "alarm (ours in bold)", {"alarm (ours in bold)": alarm},
            most=1.0,
        )
        for short, alarm in (
            ("DarkSightOutlierRateChanged", "**evidence since the start, level 1 %** (DarkSightOutlierRateChanged)"),
            ("DarkSightScoreDrift", "**PSI > critical value and 0.1, windows of 1,000** (DarkSightScoreDrift)"),
        )
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


def lines(sections: Mapping[str, str]) -> list[Line]:
    """All lines for which there is a section."""
    return [
        line
        for headline in HEADLINES
        for section, text in sections.items()
        if section.startswith(headline.section)
        for line in headline.lines(section, text)
    ]


def summarise(sections: Mapping[str, str]) -> str:
    """The summary of these sections, from the best known figures to those of the newest benchmark."""
    found = lines(sections)
    heads = [text.partition("\n")[0] for text in sections.values()]
    machines = sorted({said for head in heads for said in re.findall(r"^Machine: (.*?)\.(?: |$)", head)})
    met, missed = (sum(line.verdict == verdict for line in found) for verdict in ("met", "**missed**"))
    took = [int(seconds) for head in heads for seconds in re.findall(r"Took (\d+) s\.", head)]
    rows = [
        (_link(line.section), line.figure, line.ours, line.reference, line.ratio, line.target, line.verdict)
        for line in found
    ]
    about = (
        "`./dev bench NAME` runs one, `./dev bench all` all of them; `--quick` takes a short look that is printed and "
        "not saved. This table is made from the sections below, each by its last run, ratios within one run. "
        f"Machine: {'; '.join(machines)}. Of {met + missed} targets {met} are met."
    )
    silent = [_link(name) for name in sections if name not in {line.section for line in found}]
    if silent:
        about += f" Without a line here: {', '.join(silent)}."
    if took:
        about += f" The sections that say so took {sum(took) / 60:.0f} minutes."
    header = ("section", "figure", "ours", "reference", "ratio", "target", "")
    return f"{about}\n\n{markdown(header, rows)}"


def _link(section: str) -> str:
    """A heading as a link to it."""
    anchor = re.sub(r"[^\w\- ]", "", section.lower()).replace(" ", "-")
    return f"[{section}](#{anchor})"


if __name__ == "__main__":
    write_readme(read_sections())
