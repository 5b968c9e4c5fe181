"""The explorer as people use it: a real service, a real browser."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from darksight_client import Client, Reason
from darksight_service.control.tokens import make_token
from playwright.sync_api import Browser, Page, expect

from tests.e2e.conftest import CLASSES, ROWS, Explored
from tests.support.browser import watched_page
from tests.support.servers import wait_until


def columns_of(data: bytes) -> dict[str, Any]:
    """Header of an answer in columns."""
    length = int.from_bytes(data[:4], "little")
    header: dict[str, Any] = json.loads(data[4 : 4 + length])
    return header


def open_map(page: Page, query: str = "") -> None:
    """Open the map and wait until it has its points."""
    page.goto(f"/map{query}")
    expect(page.locator("#count")).to_contain_text(" points,")


def test_the_map_shows_points_that_can_be_walked_by_keyboard(page: Page) -> None:
    """Whoever opens the explorer sees the map of the first model with all reference and stored points.

    Without a pointer the newest points are told one after the other, with their probabilities.
    """
    page.goto("/")

    expect(page).to_have_title("Map · DarkSight")
    expect(page.locator("#model-picker")).to_have_value("digits")
    expect(page.locator("#count")).to_contain_text(re.compile(r"^[3-9]\d\d of [3-9]\d\d points, 360 reference"))
    expect(page.locator("#plot canvas").first).to_be_attached()
    expect(page.locator("#plot")).to_have_attribute("aria-label", re.compile(f"stored points.*{CLASSES} classes"))

    page.locator("#plot").focus()
    page.keyboard.press("n")
    expect(page.locator("#detail")).to_contain_text("Stored prediction")
    first = page.locator("#detail .facts").inner_text()

    page.keyboard.press("n")

    expect(page.locator("#detail .facts")).not_to_have_text(first)
    expect(page.locator(".bars .value")).to_have_count(CLASSES)
    expect(page).to_have_url(re.compile("point=[0-9a-f]{32}"))


def test_more_points_than_can_be_drawn_are_shaded(page: Page, explored: Explored) -> None:
    """The density of a sample comes by itself; whoever follows the traffic or chooses points gets points."""

    def crowd(by: int) -> None:
        """Let a minute count more points, or fewer again."""
        with closing(sqlite3.connect(explored.server.data_dir / "darksight.db", timeout=60)) as database, database:
            database.execute(
                "UPDATE rollup SET points = points + ? WHERE minute = (SELECT min(minute) FROM rollup)", (by,)
            )

    kinds = "document.getElementById('plot').data.map((trace) => trace.type)"
    crowd(200_000)
    try:
        page.goto("/map")
        expect(page.locator("#count")).to_contain_text("density of a sample")
        assert "heatmap" in page.evaluate(kinds)

        page.get_by_role("button", name="Follow live").click()
        expect(page.locator("#count")).to_contain_text(re.compile(r"^\d+ of [\d,]+ points"))
        assert "heatmap" not in page.evaluate(kinds)

        page.get_by_role("button", name="Follow live").click()
        expect(page.locator("#count")).to_contain_text("density of a sample")
        page.locator("#amount").select_option("20000")
        expect(page.locator("#count")).to_contain_text(re.compile(r"^\d+ of [\d,]+ points"))
        page.locator("#colour").select_option("time")
        expect(page.locator("#plot")).to_contain_text("time, UTC")
    finally:
        crowd(-200_000)


def test_every_view_has_an_address(page: Page) -> None:
    """What is chosen is in the address, and the address brings it back."""
    open_map(page)
    everything = page.locator("#count").inner_text().split()[0]
    page.locator("#colour").select_option("decision")
    page.locator("#contours").select_option("kde")
    page.locator("#decision").select_option("reject")
    expect(page).to_have_url(re.compile("decision=reject"))
    expect(page.locator("#count")).to_have_text(re.compile(rf"^(?!{everything} )\d+ of \d+ points"))
    told = page.locator("#count").inner_text()

    page.goto(page.url)

    expect(page.locator("#colour")).to_have_value("decision")
    expect(page.locator("#contours")).to_have_value("kde")
    expect(page.locator("#count")).to_have_text(told)
    page.go_back()
    expect(page.locator("#decision")).to_have_value("")


def test_a_subset_of_classes_is_renormalised(page: Page) -> None:
    """Two classes chosen: only their points, and probabilities that sum to one over the two."""
    open_map(page)
    everything = page.locator("#count").inner_text().split()[0]
    for number in range(2, CLASSES):
        page.locator(f'#legend input[value="{number}"]').uncheck()
    page.get_by_role("button", name="Only these").click()
    expect(page.locator("#legend label")).to_have_count(2)
    expect(page.locator("#count")).to_have_text(re.compile(rf"^(?!{everything} )\d+ of \d+ points"))
    page.locator("#plot").focus()

    page.keyboard.press("n")

    values = page.locator(".bars .value")
    expect(values).to_have_count(2)
    assert sum(float(text.rstrip("%")) for text in values.all_inner_texts()) == pytest.approx(100.0, abs=0.2)


def draw(page: Page, polygon: list[tuple[float, float]]) -> None:
    """Draw a polygon given in the map's own numbers, with the mouse; its border is thick and opaque meanwhile."""
    places = page.evaluate(
        """(polygon) => {
          const { xaxis, yaxis } = document.getElementById("plot")._fullLayout;
          const box = document.getElementById("plot").getBoundingClientRect();
          return polygon.map(([x, y]) => [box.x + xaxis._offset + xaxis.l2p(x), box.y + yaxis._offset + yaxis.l2p(y)]);
        }""",
        polygon,
    )
    page.mouse.move(*places[0])
    page.mouse.down()
    for place in places[1:]:
        page.mouse.move(*place, steps=8)
    border = page.locator("#plot .select-outline").last
    expect(border).to_have_css("opacity", "1")
    expect(border).to_have_css("stroke-width", "3px")
    page.mouse.up()


def test_a_region_is_drawn_previewed_saved_and_enforced(page: Page, explored: Explored) -> None:
    """From the mouse to the gate: what is inside is refused by the next call, and no longer once it is removed."""
    with Client(explored.server.grpc_target, timeout_seconds=60.0) as client:
        answers = [client.gate("digits", row) for row in explored.probs[:10]]
        row, (x, y) = next((i, answer.point) for i, answer in enumerate(answers) if answer.accepted)

        def reason() -> Reason:
            return client.gate("digits", explored.probs[row]).reason

        assert reason() == Reason.NONE
        open_map(page)
        page.get_by_role("button", name="Draw a region").click()
        draw(page, [(x - 1, y - 1), (x + 1, y - 1), (x + 1, y + 1), (x - 1, y + 1)])
        expect(page.locator("#draft-preview")).to_contain_text(re.compile(r"stored points inside\s*[1-9]"))
        page.locator("#region-name").fill("too sure")
        page.get_by_role("button", name="Save as shadow").click()
        expect(page.locator(".region .badge")).to_have_text("shadow")
        assert reason() == Reason.NONE

        page.get_by_role("button", name="Enforce").click()
        expect(page.locator(".region .badge")).to_have_text("enforced")
        wait_until(lambda: reason() == Reason.REGION, what="the region")
        assert not client.gate("digits", explored.probs[row]).accepted

        page.get_by_role("button", name="Preview").click()
        expect(page.locator(".region .facts")).to_contain_text("accuracy inside")
        page.get_by_role("button", name="Remove").click()
        expect(page.locator(".region")).to_have_count(0)
        wait_until(lambda: reason() == Reason.NONE, what="no region")


def test_points_are_added_as_they_arrive(page: Page, explored: Explored) -> None:
    """Whoever follows the traffic sees a call's rows without loading the page again."""
    open_map(page)
    page.get_by_role("button", name="Follow live").click()
    expect(page).to_have_url(re.compile("follow"))

    def drawn() -> int:
        return int(page.locator("#count").inner_text().split()[0])

    before = drawn()

    with Client(explored.server.grpc_target, timeout_seconds=60.0) as client:
        client.score("digits", explored.probs[:100])

    wait_until(lambda: drawn() >= before + 100, what="the points")


def test_a_region_is_carried_over_to_another_version(page: Page, explored: Explored) -> None:
    """The other version's page offers it, finds it again by the rows that were inside, and saves it as a shadow."""
    with Client(explored.server.grpc_target, timeout_seconds=60.0) as client:
        model = client.deploy("digits", "other.safetensors")
        other = next(each.version for each in model.versions if each.version != model.active_version)
        x, y = client.score("digits", explored.probs[:1]).points[0]
        client.save_region("digits", "odd corner", [(x - 3, y - 3), (x + 3, y - 3), (x + 3, y + 3), (x - 3, y + 3)])
        try:
            open_map(page, f"?model=digits&version={other[:12]}")
            page.get_by_role("button", name="Carry over").click()
            expect(page.locator("#notices")).to_contain_text(re.compile(r"Placed by [1-9]\d* rows"))
            expect(page.locator("#region-name")).to_have_value("odd corner")
            page.get_by_role("button", name="Save as shadow").click()
            expect(page.locator(".region .badge")).to_have_text("shadow")
            assert {region.version for region in client.regions("digits")} == {model.active_version, other}
        finally:
            for region in client.regions("digits"):
                client.remove_region("digits", region.name, version=region.version)


def test_answers_say_what_a_browser_may_do(explored: Explored) -> None:
    """No inline script, no frame, nothing from elsewhere, no sniffing, no referrer; and no name that is not ours."""
    with httpx.Client(base_url=explored.url, timeout=60.0) as client:
        answers = [client.get(path) for path in ("/map", "/login", "/api/models", "/static/map.js", "/nowhere")]
        rebound = client.get("/api/models", headers={"host": "rebound.example"})
        forged = client.post("/api/logout", headers={"origin": "http://elsewhere.example"})

    for answer in answers:
        policy = answer.headers["content-security-policy"]
        assert "frame-ancestors 'none'" in policy
        assert "default-src 'none'" in policy
        assert "script-src 'self' 'unsafe-inline'" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
    assert "unsafe-eval" not in answers[1].headers["content-security-policy"]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 200, 404]
    assert rebound.status_code == forged.status_code == 403


@pytest.mark.parametrize(
    ("path", "status", "field"),
    [
        ("/api/map?model=letters", 404, "model"),
        ("/api/map", 400, "model"),
        ("/api/map/points?model=digits&limit=100001", 400, "limit"),
        ("/api/map/points?model=digits&limit=10001&entropy=1", 400, "limit"),
        ("/api/map/points?model=digits&before=xyz", 400, "before"),
        ("/api/map/points?model=digits&classes=a", 400, "classes"),
        ("/api/map/points?model=digits&classes=" + "9" * 30, 400, "classes"),
        ("/api/map/density?model=digits&layer=none", 400, "layer"),
        ("/api/map/density?model=digits&classes=99", 400, "classes"),
        ("/api/map/point?model=digits&id=" + "0" * 32, 404, "id"),
    ],
)
def test_a_bad_request_is_told_what_is_wrong(explored: Explored, path: str, status: int, field: str) -> None:
    """Status, sentence and the name of the parameter."""
    answer = httpx.get(explored.url + path, timeout=60.0)

    assert answer.status_code == status
    assert answer.json()["field"] == field
    assert answer.json()["detail"]


def test_columns_come_as_bytes(explored: Explored) -> None:
    """A call for points is answered in arrays, as many as the header says."""
    answer = httpx.get(f"{explored.url}/api/map/points?model=digits&limit=50&count=1&entropy=1", timeout=60.0)
    header = columns_of(answer.content)

    assert header["meta"]["total"] >= ROWS
    assert header["columns"]["x"] == {**header["columns"]["x"], "type": "float32", "length": 50}
    assert header["columns"]["id"]["length"] == 800
    assert header["columns"]["entropy"]["length"] == 50


def test_the_first_page_names_the_explorer(explored: Explored) -> None:
    """The parent's own page says where the explorer is, and alerts lead to the map of a model."""
    status, text = explored.server.get("/")
    moved = httpx.get(f"{explored.url}/models/digits", timeout=60.0)

    assert status == 200
    assert urlsplit(json.loads(text)["explorer"]).netloc == urlsplit(explored.url).netloc
    assert moved.headers["location"] == "/map?model=digits"


def test_a_token_opens_the_explorer(explored: Explored, browser: Browser, tmp_path: Path) -> None:
    """`darksight explore` on the same data, with tokens: no page without one, no change without the scope for it."""
    secret, token = make_token("reader", ["read"])
    (tmp_path / "tokens").write_text(token.line())
    command = (sys.executable, "-m", "darksight_service.cli", "explore", "--explorer-port", "0")
    process = subprocess.Popen(
        [*command, "--data-dir", str(explored.server.data_dir)],
        env={**os.environ, "DARKSIGHT_TOKENS_FILE": str(tmp_path / "tokens")},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        url = next(filter(None, (re.search(r"explorer on (\S+)", line) for line in process.stderr)))[1]
        refused = httpx.get(f"{url}/api/models", timeout=60.0)
        with watched_page(browser, url, may_fail=True) as page:
            page.goto("/map?model=digits&colour=entropy")
            expect(page).to_have_url(re.compile("/login"))
            page.locator("#token").fill("ds_wrong")
            page.get_by_role("button", name="Log in").click()
            expect(page.get_by_role("alert")).to_contain_text("unknown")
            page.locator("#token").fill(secret)
            page.get_by_role("button", name="Log in").click()
            expect(page.locator("#colour")).to_have_value("entropy")
            expect(page.locator("#who")).to_have_text("reader")
            expect(page.locator("#count")).to_contain_text(" points,")
            page.get_by_role("button", name="Type corners").click()
            expect(page.get_by_role("button", name="Save as shadow")).to_be_disabled()
            # A browser drops the tab, and what is left names another site.
            page.goto("/login?next=%2F%09%2Felsewhere.example%2F")
            expect(page.locator("#who")).to_have_text("reader")
            page.get_by_role("button", name="Log out").click()
            expect(page.locator("#token")).to_be_visible()
    finally:
        process.terminate()
        process.communicate(timeout=60)

    assert refused.status_code == 401
    assert process.returncode == 0
