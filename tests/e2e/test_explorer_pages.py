"""The gate, drift, review and points pages as people use them."""

from __future__ import annotations

import math
import re
from urllib.parse import urlencode

import httpx
import pytest
from darksight_client import Client
from playwright.sync_api import Page, Route, expect

from darksight_core.map.palette import class_colours
from tests.e2e.conftest import CLASSES, HOSTILE, Explored
from tests.support.builders import make_probs
from tests.support.servers import wait_until

# A label waits four seconds before it is sent, and the machine may be busy.
expect.set_options(timeout=60_000)


def expect_named(page: Page, name: str) -> None:
    """A page says what it shows: its figures, how many points they are made from, and a place in the navigation."""
    expect(page).to_have_title(re.compile("DarkSight"))
    expect(page.locator("#used")).to_contain_text(re.compile(r"\d+ "))
    expect(page.locator("nav a[aria-current]")).to_have_attribute("data-page", name)
    # plotly's button that uploads a figure is off.
    expect(page.locator(".modebar-btn[data-title*='hare'], .modebar-btn[data-title*='loud']")).to_have_count(0)


def test_the_gate_opens_with_its_promise(page: Page) -> None:
    """Promised and measured accuracy with a verdict, the promised accuracy to certify, and the score in force."""
    page.goto("/gate?model=digits")

    expect_named(page, "gate")
    expect(page.locator("#promise")).to_contain_text("≥ 97.0%")
    # Another test may have changed the gate.
    expect(page.locator("#promise .verdict")).to_contain_text(re.compile(r"Broken\.|Kept\.|Not decided\."))
    expect(page.locator("#accuracy")).to_have_value("0.97")
    expect(page.locator("#delta")).to_have_value("0.05")
    expect(page.locator("#scores")).to_contain_text("max-softmax (in force)")
    expect(page.locator("#score-line")).to_contain_text(re.compile(r"accept if max-softmax ≥ (0\.\d{4}|1 − )"))
    expect(page.locator("#scores")).to_contain_text("refitted to these labels (proposal)")
    colours = page.locator("#scores .swatch").evaluate_all("all => all.map((each) => each.style.background)")
    assert len(set(colours)) == len(colours) > 8


def test_a_threshold_is_slid_and_put_into_force(page: Page, explored: Explored) -> None:
    """The slider changes what is kept at once and stands in the address; applied, it is the gate's and in the trail."""
    page.goto("/gate?model=digits")
    expect(page.locator("#scores table")).to_be_visible()
    kept = page.locator("#reading .stat b").first
    before = kept.inner_text()

    slider = page.locator("#threshold")
    slider.focus()
    for _ in range(8):
        slider.press("PageUp")
    expect(kept).not_to_have_text(before)
    expect(page).to_have_url(re.compile("threshold="))
    threshold = page.locator("#threshold-value").inner_text()
    page.fill("#author", "ada")
    page.fill("#comment", "fewer errors, please")
    page.click("#apply-button")

    expect(page.locator("#history tbody tr").first).to_contain_text("fewer errors, please")
    expect(page.locator("#history tbody tr").first).to_contain_text("ada")
    expect(page.locator("#score-line")).to_contain_text(threshold)
    gate = httpx.get(f"{explored.url}/api/gate", params={"model": "digits"}, timeout=60.0).json()["gate"]
    # The page shows a probability.
    assert 1.0 / (1.0 + math.exp(-gate["reject"]["threshold"])) == pytest.approx(float(threshold), abs=1e-3)


def test_points_are_labelled_by_keys_and_taught(page: Page, explored: Explored) -> None:
    """One key a point; `u` takes the last one back; the labels reach the store and the learned confidence."""

    def labels() -> int:
        found = httpx.get(f"{explored.url}/api/review/learned-score", params={"model": "digits"}, timeout=60.0).json()
        return int(found["used"]["labels"])

    before = labels()
    page.goto("/review?model=digits&stream=doubtful")
    shown = page.locator("#item a.mono")
    expect(page.locator("#label-count")).to_have_text(str(before))
    first = shown.inner_text()
    page.keyboard.press("1")
    expect(shown).not_to_have_text(first)
    page.keyboard.press("u")
    expect(shown).to_have_text(first)

    for key in ("1", "2", "s", "1"):
        last = shown.inner_text()
        page.keyboard.press(key)
        expect(shown).not_to_have_text(last)

    expect(page.locator("#label-count")).to_have_text(str(before + 3))
    assert labels() == before + 3


def test_classes_named_by_digits_have_them_as_keys(page: Page) -> None:
    """The key 0 labels the class 0, whatever its probability; of other names keys are ranks of probability."""

    def rename(route: Route) -> None:
        found = route.fetch().json()
        route.fulfill(json={**found, "class_names": [str(k) for k in range(len(found["class_names"]))]})

    page.route("**/api/review?*", rename)
    page.goto("/review?model=digits&stream=doubtful")
    shown = page.locator("#item a.mono")
    first = shown.inner_text()
    for pick in page.locator("#item .pick").all():
        assert pick.locator("kbd").inner_text() == pick.locator("span").nth(1).inner_text()

    page.keyboard.press("0")

    expect(page.locator("#pending")).to_contain_text(f"“0” for {first}")
    page.keyboard.press("u")
    expect(shown).to_have_text(first)


def test_pictures_are_reviewed_by_keyboard(page: Page, explored: Explored) -> None:
    """The picture of each point is beside its classes, one key labels it, and all labels reach the store."""

    def labelled() -> int:
        found = httpx.get(f"{explored.url}/api/review/learned-score", params={"model": "digits"}, timeout=60.0).json()
        return int(found["used"]["labels"])

    before = labelled()
    page.goto("/review?model=digits&stream=doubtful")
    shown, picture = page.locator("#item a.mono"), page.locator("#item .reference img")
    expect(shown).to_be_visible()
    reviewed: list[str] = []
    while len(reviewed) < 6:
        name, caption = shown.inner_text(), page.locator("#item .reference figcaption")
        # Points of other tests have no picture.
        has_picture = caption.count() == 1 and caption.inner_text().endswith(".png")
        if has_picture:
            expect(picture).to_be_visible()
            page.wait_for_function("document.querySelector('#item .reference img')?.naturalWidth === 48")
            reviewed.append(name)
        page.keyboard.press(str(1 + len(reviewed) % 2) if has_picture else "s")
        expect(shown).not_to_have_text(name)

    expect(page.locator("#label-count")).to_have_text(str(before + 6))
    assert len(set(reviewed)) == 6
    assert labelled() == before + 6


def test_the_keys_of_a_prediction_set_are_marked(page: Page) -> None:
    """Of a rejected point: the classes of its set are named, and their keys stand out and come first."""
    page.goto("/review?model=digits&stream=outliers")

    expect_named(page, "review")
    expect(page.locator("#prediction-set")).to_contain_text(re.compile(r"One of class \d.* with 95%"))
    classes = page.locator("#prediction-set strong").inner_text().removeprefix("One of ").split(", ")
    expect(page.locator("#item .pick.in-set")).to_have_count(len(classes))
    picks = page.locator("#item .pick").all_inner_texts()
    assert [name in text for name, text in zip(classes, picks, strict=False)] == [True] * len(classes)


def test_hostile_references_are_shown_as_text(page: Page, explored: Explored) -> None:
    """Nothing runs, nothing is loaded from elsewhere, and the page says why there is no picture."""
    for reference, name in zip(HOSTILE, explored.names[-len(HOSTILE) :], strict=True):
        page.goto(f"/points?{urlencode({'model': 'digits', 'name': name})}")
        expect(page.locator("#detail .reference bdi")).to_have_text(reference)
        expected = "<script>alert(1)</script>" if reference == "page.txt" else "Not shown: the reference"
        expect(page.locator("#detail .reference")).to_contain_text(expected)
        expect(page.locator("#detail .reference img")).to_have_count(0)


def test_a_view_of_points_has_an_address(page: Page) -> None:
    """Filters go into the address, pages follow each other, and a point opens by its name."""
    page.goto("/points?model=digits")
    page.select_option("#decisions", "reject")
    page.click("#filters button.primary")
    expect(page).to_have_url(re.compile("decisions=reject"))
    page.reload()
    expect(page.locator("#decisions")).to_have_value("reject")
    expect(page.locator("#table .badge.reject").first).to_be_visible()
    expect(page.locator("#table .badge.accept")).to_have_count(0)

    page.goto("/points?model=digits")
    first = page.locator("#table a.mono").first.inner_text()
    page.click("#next")
    expect(page.locator("#table a.mono").first).not_to_have_text(first)
    page.locator("#table a.mono").first.click()
    expect(page.locator("#detail .bar-fill")).to_have_count(5)


def test_hostile_tags_are_text(page: Page, explored: Explored) -> None:
    """Markup, quotes and text of another direction are shown as they are; a tag leads to the points that have it."""
    hostile = {
        "note": "<img src=x onerror=\"document.title='run'\">",
        "site": "a\u202e'b\"",
        "reference": "javascript:alert(1)",
    }
    with Client(explored.server.grpc_target, timeout_seconds=60.0) as client:
        name = client.score("digits", make_probs(1, CLASSES), tags=hostile).prediction_ids[0]
        wait_until(lambda: list(client.points("digits", tags={"note": hostile["note"]})), what="stored points")

    page.goto(f"/points?model=digits&name={name}")

    badges = page.locator("#detail bdi.badge")
    expect(badges).to_have_text([f"{key}={hostile[key]}" for key in ("note", "reference", "site")])
    expect(page.locator("#detail img")).to_have_count(0)
    expect(page.locator("#detail a[href^='javascript']")).to_have_count(0)
    expect(page).to_have_title(re.compile("DarkSight"))
    page.locator("#detail a bdi.badge").first.click()
    expect(page.locator("#tags")).to_have_value(f"note={hostile['note']}")
    expect(page.locator("#table a.mono")).to_have_text([name])

    page.goto("/map?model=digits")
    page.locator("#colour").select_option("tag:note")
    lines = page.locator("#tag-legend .line")
    expect(lines).to_have_text([f"{hostile['note']}1", re.compile(r"^none[\d,]+$")])
    expect(page.locator("#tag-legend img")).to_have_count(0)
    expect(page).to_have_url(re.compile("colour=tag%3Anote"))
    # The one point has the colour of its line, all others are grey.
    drawn = page.evaluate(
        "document.getElementById('plot').data.filter((each) => each.meta?.source === 'live')"
        ".map((each) => [each.marker.color, each.x.length])"
    )
    assert [each for each in drawn if each[0] == class_colours(1)[0]] == [[class_colours(1)[0], 1]]
    assert len({colour for colour, _ in drawn}) == 2


def test_controls_wait_for_their_script(page: Page) -> None:
    """Nothing can be chosen or sent before the page listens."""
    held: list[Route] = []
    page.route("**/static/points.js", lambda route: held.append(route))
    page.goto("/points?model=digits", wait_until="commit")
    expect(page.locator("#filters button.primary")).to_be_disabled()

    held[0].continue_()
    expect(page.locator("#filters button.primary")).to_be_enabled()


def test_drift_opens_with_its_kind_and_what_it_costs(page: Page) -> None:
    """Rows like the calibration rows: no drift, class shares with intervals, and what the certificate needs."""
    page.goto("/drift?model=digits")

    expect_named(page, "drift")
    expect(page.locator("#verdict")).to_contain_text("No drift: neither scores nor predicted classes have changed.")
    expect(page.locator("#now")).to_contain_text("evidence, outlier scores")
    expect(page.locator("#used")).to_contain_text("The estimated accuracy is withheld: the bundle was fitted")
    expect(page.locator("#shares tbody tr")).to_have_count(CLASSES)
    expect(page.locator("#regions")).to_contain_text("This version has no regions")


COVERED = """() => {
  const visible = (selector) => [...document.querySelectorAll(selector)].filter(each => each.checkVisibility());
  const boxes = (selector) => visible(selector).map(each => each.getBoundingClientRect());
  const controls = boxes("header a, header select, main button, main input, main select, main textarea, main a");
  return boxes(".notice").flatMap(notice => controls.filter(each => {
    const frame = document.querySelector("main").getBoundingClientRect();
    const bottom = Math.min(each.bottom, frame.bottom);
    return each.left < notice.right && notice.left < each.right && each.top < notice.bottom && notice.top < bottom;
  })).length;
}"""


@pytest.mark.parametrize("name", ["map", "gate", "review"])
def test_a_notice_covers_no_control(page: Page, name: str) -> None:
    """Neither in a wide window nor in a narrow one."""
    page.goto(f"/{name}?model=nonsense")
    expect(page.locator(".notice")).to_contain_text("There is no model nonsense")
    expect(page.locator("#controls")).to_be_enabled()

    assert page.evaluate(COVERED) == 0
    page.set_viewport_size({"width": 700, "height": 500})
    assert page.evaluate(COVERED) == 0


def test_points_are_sorted_by_a_column(page: Page) -> None:
    """A click on a title sorts the page, a second one the other way; the order is in the address."""

    def p_values() -> list[float]:
        return [float(text) for text in page.locator("#table tbody td:nth-child(7)").all_inner_texts()]

    page.goto("/points?model=digits")
    page.get_by_role("button", name="p-value", exact=True).click()
    expect(page.locator("th[aria-sort=ascending]")).to_contain_text("p-value")
    assert p_values() == sorted(p_values())
    page.get_by_role("button", name="p-value", exact=True).click()
    expect(page).to_have_url(re.compile("sort=-7"))
    page.reload()

    expect(page.locator("th[aria-sort=descending]")).to_contain_text("p-value")
    assert p_values() == sorted(p_values(), reverse=True)


@pytest.mark.parametrize("name", ["gate", "points"])
def test_pages_follow_the_colour_scheme(page: Page, name: str) -> None:
    """Text is dark on light or light on dark, in figures too, also when the scheme changes while a page is open."""

    def light(script: str) -> float:
        return float(
            page.evaluate(f"""() => {{
          const [r, g, b] = {script}.match(/\\d+/g).map(Number);
          return (r + g + b) / 765;
        }}""")
        )

    page.emulate_media(color_scheme="light")
    page.goto(f"/{name}?model=digits")
    expect(page.locator("#used")).to_contain_text(re.compile(r"\d+ "))
    text, ground = "getComputedStyle(document.body).color", "getComputedStyle(document.body).backgroundColor"
    assert light(ground) > 0.9 > 0.3 > light(text)
    page.emulate_media(color_scheme="dark")

    assert light(ground) < 0.2 < 0.8 < light(text)
    if name == "gate":
        expect(page.locator(".plot .xtick text").first).to_have_css("fill", "rgb(227, 232, 239)")


def test_classes_have_the_colours_of_reports(page: Page) -> None:
    """The swatches of the points page are those of the palette."""
    page.goto("/points?model=digits")
    expect_named(page, "points")
    expect(page.locator("#table .swatch").first).to_be_visible()

    shown = page.locator("#table td:nth-child(3)").evaluate_all(
        "all => all.map(each => [each.textContent, each.querySelector('.swatch').style.background])"
    )

    for name, colour in shown:
        wanted = class_colours(CLASSES)[int(name.removeprefix("class "))]
        red, green, blue = (int(wanted[i : i + 2], 16) for i in (1, 3, 5))
        assert colour == f"rgb({red}, {green}, {blue})"
