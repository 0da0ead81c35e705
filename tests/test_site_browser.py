"""The site in a real Chromium: it draws, it is searched, it can be walked through by keyboard."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness import catalog
from harness.files import ROOT
from tests.chromium import MISSING, executable
from tests.made_site import a_bare_site, a_site

pytestmark = pytest.mark.browser

SHOTS = ROOT / "build" / "screenshots"
"""Where the screenshots are kept, for people to look at."""

WIDE, PHONE = {"width": 1280, "height": 900}, {"width": 360, "height": 780}
MARKS = ", ".join(f"svg .mark-{kind} path" for kind in ("rect", "symbol", "line"))
PAGES = [
    "index.html",
    "releases.html",
    "nights.html",
    "upstreams/transformers.html",
    *(f"bugs/{name}.html" for name in catalog.names()),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return a_site(tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site without a history, which has every release that was ever recorded."""
    return a_bare_site(tmp_path_factory.mktemp("recorded"))


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A browser. Without one the tests are skipped, with a line that says how to get one."""
    playwright = pytest.importorskip("playwright.sync_api")
    path = executable()
    if path is None:
        pytest.skip(MISSING)
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


class Tab:
    """A tab, and all that went wrong in it."""

    def __init__(self, browser: Any, site: Path, **options: Any) -> None:
        self.site = site
        self.context = browser.new_context(**{"viewport": WIDE, **options})
        self.page = self.context.new_page()
        self.wrong: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", self._said)
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("requestfailed", lambda asked: self.wrong.append(f"failed: {asked.url}"))
        self.page.on("request", lambda asked: self.asked.append(asked.url))

    def _said(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.wrong.append(message.text)

    def open(self, name: str) -> Any:
        """Open a page of the site, with all of its charts drawn."""
        address, _, fragment = name.partition("#")
        self.page.goto((self.site / address).as_uri() + (f"#{fragment}" if fragment else ""))
        if self.page.locator(".chart").count():
            self.page.wait_for_selector("html[data-charts]", state="attached")
        return self.page

    def keep(self, name: str) -> None:
        """Keep a picture of the whole page."""
        SHOTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=SHOTS / f"{name.replace('/', '_')}.png", full_page=True)


@pytest.fixture
def tab(chromium: Any, site: Path) -> Iterator[Tab]:
    made = Tab(chromium, site)
    yield made
    made.context.close()


@pytest.fixture
def phone(chromium: Any, site: Path) -> Iterator[Tab]:
    made = Tab(chromium, site, viewport=PHONE, has_touch=True)
    yield made
    made.context.close()


@pytest.mark.parametrize("name", PAGES)
def test_a_page_draws_its_charts_without_a_complaint_and_asks_no_network(
    name: str, tab: Tab
) -> None:
    page = tab.open(name)
    for place in page.locator(".chart").all():
        assert place.locator(MARKS).count(), "a chart without a mark"
        box = place.locator("svg").first.bounding_box()
        assert box["width"] > 200
        assert box["height"] > 40
    bug = Path(name).stem
    if bug in catalog.names() and hasattr(catalog.load(bug), "picture") and bug != "device_math":
        assert page.locator("#picture + figure .chart svg").count(), "no picture of a recorded run"
    assert tab.wrong == []
    assert all(re.match("(file|data|blob):", address) for address in tab.asked), tab.asked
    tab.keep(f"wide_{name}")


@pytest.mark.parametrize("name", PAGES)
def test_a_page_does_not_scroll_sideways_on_a_phone(name: str, phone: Tab) -> None:
    page = phone.open(name)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    assert phone.wrong == []
    phone.keep(f"phone_{name}")


def shown(page: Any) -> list[str]:
    """The bugs that the catalogue shows, by name."""
    names = page.locator("li.bug:visible .mono").all_inner_texts()
    assert page.locator(".count").inner_text() == f"{len(names)} of {len(catalog.names())} bugs"
    return list(names)


def test_the_catalogue_is_searched_and_its_address_says_how(tab: Tab) -> None:
    page = tab.open("index.html")
    assert shown(page) == list(catalog.names())
    page.get_by_label("Search").fill("loss SCALE minimum")
    assert "fp16_overflow" in shown(page)
    assert "sampler_shards" not in shown(page)
    assert page.url.endswith("#q=loss+SCALE+minimum")
    page.get_by_label("Search").fill("no such words")
    assert shown(page) == []
    assert page.get_by_text("None is like that").is_visible()
    assert tab.wrong == []


def test_the_filters_go_together_and_an_address_brings_them_back(tab: Tab) -> None:
    page = tab.open("index.html")
    page.get_by_label("Upstream").select_option("transformers")
    assert shown(page) == ["rope_zero_init", "rope_zero_init_v5", "trainer_gas_twice"]
    page.get_by_label("What goes wrong").select_option("positions")
    assert shown(page) == ["rope_zero_init", "rope_zero_init_v5"]
    page.get_by_label("alive in the newest release").check()
    assert shown(page) == ["rope_zero_init"]
    address = page.url
    page.goto("about:blank")
    page.goto(address)
    assert shown(page) == ["rope_zero_init"]
    assert page.get_by_label("alive in the newest release").is_checked()
    tab.keep("wide_index_filtered")
    page.get_by_label("Runs on").select_option("gpu")
    assert shown(page) == ["rope_zero_init"]


def test_an_address_that_names_no_choice_shows_all(tab: Tab) -> None:
    page = tab.open("index.html#upstream=nobody&lane=tpu")
    assert shown(page) == list(catalog.names())


def test_a_lane_is_asked_for(tab: Tab) -> None:
    page = tab.open("index.html#lane=cpu")
    assert "device_math" not in shown(page)
    assert len(shown(page)) == len(catalog.names()) - 1


def test_the_keyboard_reaches_all_that_a_pointer_does(tab: Tab) -> None:
    page = tab.open("bugs/bf16_clip.html")
    wanted = page.evaluate(
        "document.querySelectorAll('a[href], summary, input, select, [tabindex=\"0\"]').length"
        " - [...document.querySelectorAll('details:not([open]) > :not(summary)')]"
        ".reduce((n, e) => n + e.matches('[tabindex=\"0\"]')"
        " + e.querySelectorAll('a[href], summary, [tabindex=\"0\"]').length, 0)"
    )
    reached = set()
    for _ in range(wanted + 5):
        page.keyboard.press("Tab")
        told = page.evaluate(
            "(() => { const e = document.activeElement; const s = getComputedStyle(e);"
            " return [e.tagName, [...document.querySelectorAll('*')].indexOf(e), s.outlineWidth,"
            " e.matches(':focus-visible')]; })()"
        )
        if told[0] != "BODY":
            assert float(told[2].removesuffix("px")) >= 2, f"the focus is not seen on {told}"
            reached.add(told[1])
    assert len(reached) == wanted


def test_the_first_key_offers_to_skip_to_the_content(tab: Tab) -> None:
    page = tab.open("releases.html")
    page.keyboard.press("Tab")
    assert page.get_by_role("link", name="Skip to the content").bounding_box()["x"] >= 0
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"


def test_evidence_and_numbers_are_opened_by_keyboard(tab: Tab) -> None:
    page = tab.open("bugs/bf16_clip.html")
    summary = page.locator("#evidence ~ details summary").first
    summary.focus()
    page.keyboard.press("Enter")
    assert page.locator("#evidence ~ details[open]").get_by_text("python -m harness run").count()
    tab.keep("wide_evidence_open")


def test_a_value_is_told_to_a_pointer(tab: Tab) -> None:
    page = tab.open("bugs/bf16_clip.html")
    page.locator("#picture ~ figure .mark-symbol path").first.hover(force=True)
    page.wait_for_selector("#vg-tooltip-element.visible")
    assert "buggy" in page.locator("#vg-tooltip-element").inner_text()


def colours(page: Any) -> tuple[str, str]:
    """Of the page's ground, and of the first line that a chart draws."""
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    line = page.locator("#picture ~ figure .mark-line path").first.get_attribute("stroke")
    return str(ground), str(line)


def test_the_page_and_its_charts_follow_the_scheme(tab: Tab) -> None:
    page = tab.open("bugs/bf16_clip.html")
    light = colours(page)
    page.emulate_media(color_scheme="dark")
    page.wait_for_selector("html[data-charts='dark']", state="attached")
    dark = colours(page)
    assert light[0] != dark[0]
    assert light[1] != dark[1]
    assert "var:" not in dark[1]
    assert tab.wrong == []
    for name in ("index.html", "releases.html", "nights.html", "bugs/bf16_clip.html"):
        tab.open(name)
        tab.keep(f"dark_{name}")


def luminance(colour: str) -> float:
    """The relative luminance of ``rgb(1, 2, 3)``, from 0 to 1, by the WCAG's formula."""
    shares = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    red, green, blue = (
        share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_stand_out_from_their_ground(scheme: str, tab: Tab) -> None:
    tab.page.emulate_media(color_scheme=scheme)
    page = tab.open("index.html")
    pairs = [
        ("body", "body"),
        (".dim, .count", "body"),
        ("a.mono", "body"),
        (".tag", ".tag"),
        (".affected > .sign", ".tag.affected"),
        (".clean > .sign", ".tag.clean"),
    ]
    for words, ground in pairs:
        found = [
            page.evaluate(
                "([s, p]) => getComputedStyle(document.querySelector(s)).getPropertyValue(p)", ask
            )
            for ask in ([words, "color"], [ground, "background-color"])
        ]
        dim, bright = sorted(map(luminance, found))
        assert (bright + 0.05) / (dim + 0.05) >= 4.5, f"{words} on {ground}: {found}"


def test_without_scripts_all_is_still_told(chromium: Any, site: Path) -> None:
    still = Tab(chromium, site, java_script_enabled=False)
    page = still.page
    page.goto((site / "index.html").as_uri())
    assert page.locator("li.bug:visible").count() == len(catalog.names())
    page.goto((site / "bugs" / "bf16_clip.html").as_uri())
    assert page.get_by_text("A script draws this chart").first.is_visible()
    still.context.close()


@pytest.mark.parametrize("name", ["releases.html", "upstreams/deepspeed.html"])
def test_a_wide_table_scrolls_inside_itself_and_shows_its_newest_end_first(
    name: str, chromium: Any, recorded: Path
) -> None:
    phone = Tab(chromium, recorded, viewport=PHONE)
    page = phone.open(name)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    told = page.evaluate(
        "[...document.querySelectorAll('.scroll:has(> table.heat)')]"
        ".map((e) => [e.scrollWidth - e.clientWidth, e.scrollLeft])"
    )
    assert max(wider for wider, _ in told) > 100, "nothing to scroll: the test looks at nothing"
    for wider, at in told:
        assert abs(wider - at) <= 1
    phone.keep(f"phone_recorded_{name}")
    phone.context.close()
