"""The explorer as people use it: a real service, a real browser."""

from __future__ import annotations

from playwright.sync_api import Page, expect


def test_the_map_of_the_first_model_is_shown(page: Page) -> None:
    """Whoever opens the explorer sees a map."""
    page.goto("/")

    expect(page).to_have_title("Map · DarkSight")
    expect(page.locator("#model-picker")).to_have_value("digits")
    expect(page.locator("#plot canvas").first).to_be_attached()
