"""The site in a real Chromium: charts, search, keyboard, colours, phones."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.bugs import catalog
from harness.bugs.api.spec import Lane
from harness.system.files import ROOT
from tests.chromium import MISSING, executable
from tests.made_site import a_bare_site, a_site

pytestmark = pytest.mark.browser

SHOTS = ROOT / "build" / "screenshots"
"""The folder of screenshots, which people look at."""

WIDE, PHONE = {"width": 1280, "height": 900}, {"width": 360, "height": 780}
MARKS = ", ".join(f"svg .mark-{kind} path" for kind in ("rect", "symbol", "line"))
PAGES = [
    "index.html",
    "docs/alive.html",
    "releases.html",
    "models.html",
    "nightlies.html",
    "advisories.html",
    "upstreams/transformers.html",
    "bugs/bf16_clip.html",
    "bugs/sampler_shards.html",
    "bugs/qat_group_size.html",
]
"""A page of each kind; the bugs have a picture of each kind."""


BUGS = (
    "bf16_clip",
    "device_math",
    "fp16_overflow",
    "length_grouped_resume",
    "packed_with_cache",
    "qat_group_size",
    "rope_zero_init",
    "sampler_shards",
    "trainer_gas_twice",
)


@pytest.fixture(scope="module", autouse=True)
def few() -> Iterator[None]:
    """The sites have only these bugs: all would take minutes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(catalog, "sound", lambda: BUGS)
        patch.setattr(catalog, "names", lambda: BUGS)
        yield


def runs_on_cpu(bug: str) -> bool:
    return Lane.CPU in catalog.scenario(bug).lanes


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
    """A tab, with the errors and requests in it."""

    def __init__(self, browser: Any, site: Path, **options: Any) -> None:
        self.site = site
        self.context = browser.new_context(**{"viewport": WIDE, **options})
        self.page = self.context.new_page()
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", self._message)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("requestfailed", lambda request: self.errors.append(request.url))
        self.page.on("request", lambda request: self.requests.append(request.url))

    def _message(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.errors.append(message.text)

    def open(self, name: str) -> Any:
        """Open a page of the site, with all of its charts drawn."""
        address, _, fragment = name.partition("#")
        self.page.goto((self.site / address).as_uri() + (f"#{fragment}" if fragment else ""))
        if self.page.locator(".chart").count():
            self.page.wait_for_selector("html[data-charts]", state="attached")
        return self.page

    def screenshot(self, name: str) -> None:
        SHOTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=SHOTS / f"{name.replace('/', '_')}.png", full_page=True)


@pytest.fixture
def tab(chromium: Any, site: Path) -> Iterator[Tab]:
    new_tab = Tab(chromium, site)
    yield new_tab
    new_tab.context.close()


@pytest.fixture
def phone(chromium: Any, site: Path) -> Iterator[Tab]:
    new_tab = Tab(chromium, site, viewport=PHONE, has_touch=True)
    yield new_tab
    new_tab.context.close()


@pytest.mark.parametrize("name", PAGES)
def test_a_page_draws_its_charts_without_an_error_and_without_a_network(
    name: str, tab: Tab
) -> None:
    page = tab.open(name)
    for chart in page.locator(".chart").all():
        assert chart.locator(MARKS).count(), "a chart without a mark"
        box = chart.locator("svg").first.bounding_box()
        assert box["width"] > 200
        assert box["height"] > 40
    if name.startswith("bugs/"):
        picture = page.locator("#picture + figure").locator(".chart svg, .bar, table.grid td")
        assert picture.count(), "no picture of a recorded run"
    assert tab.errors == []
    assert all(re.match("(file|data|blob):", address) for address in tab.requests), tab.requests
    tab.screenshot(f"wide_{name}")


@pytest.mark.parametrize("name", PAGES)
def test_a_page_does_not_scroll_sideways_on_a_phone(name: str, phone: Tab) -> None:
    page = phone.open(name)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    assert phone.errors == []
    phone.screenshot(f"phone_{name}")


def visible_bugs(page: Any) -> list[str]:
    """The bugs that the catalogue shows, by name."""
    names = page.locator("li.bug:visible .mono").all_inner_texts()
    assert page.locator(".count").inner_text() == f"{len(names)} of {len(catalog.names())} bugs"
    return list(names)


def test_a_search_changes_the_catalogue_and_its_address(tab: Tab) -> None:
    page = tab.open("index.html")
    assert visible_bugs(page) == list(catalog.names())
    page.get_by_label("Search").fill("loss SCALE minimum")
    assert "fp16_overflow" in visible_bugs(page)
    assert "sampler_shards" not in visible_bugs(page)
    assert page.url.endswith("#q=loss+SCALE+minimum")
    page.get_by_label("Search").fill("quagga")
    assert visible_bugs(page) == []
    assert page.get_by_text("No bug matches").is_visible()
    assert tab.errors == []


def bugs(**metadata: str) -> list[str]:
    """The scenarios with these metadata, except those about torch alone."""
    scenarios = {name: catalog.scenario(name) for name in catalog.names()}
    return [
        name
        for name, scenario in scenarios.items()
        if scenario.pins and all(getattr(scenario, key) == value for key, value in metadata.items())
    ]


def test_filters_combine_and_an_address_restores_them(tab: Tab) -> None:
    page = tab.open("index.html")
    page.get_by_label("Upstream").select_option("transformers")
    assert visible_bugs(page) == bugs(subject="transformers")
    page.get_by_label("Harm").select_option("wrong resume")
    assert visible_bugs(page) == bugs(subject="transformers", harm="wrong resume")
    page.get_by_label("Harm").select_option("ruins training")
    page.get_by_label("alive in the newest release").check()
    address = page.url
    page.goto("about:blank")
    page.goto(address)
    assert visible_bugs(page) == ["rope_zero_init"]
    assert page.get_by_label("alive in the newest release").is_checked()
    tab.screenshot("wide_index_filtered")
    page.get_by_label("Runs on").select_option("gpu")
    assert visible_bugs(page) == ["rope_zero_init"]


def test_a_search_finds_a_model_and_its_wrong_features(tab: Tab) -> None:
    page = tab.open("models.html")
    rows = page.locator("table.models tbody tr")
    every = rows.count()
    page.get_by_label("Search").fill("GPT_OSS")
    visible_rows = rows.filter(visible=True)
    assert visible_rows.locator("th").all_inner_texts()[0] == "gpt_oss"
    assert visible_rows.count() < every
    page.get_by_label("Search").fill("packing")
    matches = visible_rows.count()
    assert 0 < matches < every
    assert page.locator(".count").inner_text() == f"{matches} of {every} models"
    page.get_by_label("Search").fill("")
    page.get_by_label("only with a wrong feature").check()
    assert page.url.endswith("#wrong=yes")
    assert set(visible_rows.evaluate_all("rows => rows.map((row) => row.dataset.wrong)")) == {"yes"}
    page.get_by_label("Search").fill("gpt_oss packing")
    assert visible_rows.locator("th").all_inner_texts() == ["gpt_oss"]
    page.get_by_label("Search").fill("quagga")
    assert page.get_by_text("No model has all of these words").is_visible()
    address = page.url
    page.goto("about:blank")
    page.goto(address)
    assert page.get_by_label("Search").input_value() == "quagga"
    assert tab.errors == []


def test_an_advisory_opens_as_json(chromium: Any, recorded: Path) -> None:
    tab = Tab(chromium, recorded)
    tab.open("docs/alive.html")
    tab.screenshot("wide_recorded_alive")
    page = tab.open("advisories.html")
    tab.screenshot("wide_recorded_advisories")
    page.get_by_role("link", name="trainer_gas_twice").click()
    content = json.loads(page.locator("pre").inner_text())
    assert content["id"] == "x_distributed-bugs-trainer_gas_twice"
    tab.context.close()


def test_an_address_may_name_a_lane_and_unknown_choices_are_ignored(tab: Tab) -> None:
    on_cpu = [name for name in catalog.names() if runs_on_cpu(name)]
    for address, names in (("lane=cpu", on_cpu), ("upstream=x&lane=tpu", list(catalog.names()))):
        tab.page.goto("about:blank")
        assert visible_bugs(tab.open(f"index.html#{address}")) == names


def test_the_keyboard_reaches_everything_that_a_pointer_does(tab: Tab) -> None:
    page = tab.open("bugs/bf16_clip.html")
    tab_stops = page.evaluate(
        "document.querySelectorAll('a[href], summary, input, select, [tabindex=\"0\"]').length"
        " - [...document.querySelectorAll('details:not([open]) > :not(summary)')]"
        ".reduce((n, e) => n + e.matches('[tabindex=\"0\"]')"
        " + e.querySelectorAll('a[href], summary, [tabindex=\"0\"]').length, 0)"
    )
    reached = set()
    for _ in range(tab_stops + 5):
        page.keyboard.press("Tab")
        tag, index, width = page.evaluate(
            "(() => { const e = document.activeElement; const s = getComputedStyle(e);"
            " return [e.tagName, [...document.querySelectorAll('*')].indexOf(e), s.outlineWidth];"
            " })()"
        )
        if tag != "BODY":
            assert float(width.removesuffix("px")) >= 2, f"no visible focus on {tag} {index}"
            reached.add(index)
    assert len(reached) == tab_stops


def test_the_first_key_offers_to_skip_to_the_content(tab: Tab) -> None:
    page = tab.open("releases.html")
    page.keyboard.press("Tab")
    assert page.get_by_role("link", name="Skip to the content").bounding_box()["x"] >= 0
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"


def test_evidence_is_opened_by_keyboard_and_a_pointer_shows_a_value(tab: Tab) -> None:
    page = tab.open("bugs/bf16_clip.html")
    page.locator("#evidence ~ details summary").first.focus()
    page.keyboard.press("Enter")
    assert page.locator("#evidence ~ details[open]").get_by_text("distributed-bugs run").count()
    tab.screenshot("wide_evidence_open")
    page.locator("#picture ~ figure .mark-symbol path").first.hover(force=True)
    page.wait_for_selector("#vg-tooltip-element.visible")
    assert "buggy" in page.locator("#vg-tooltip-element").inner_text()


def colours(page: Any) -> tuple[str, str]:
    """The colours of the page's background, and of the first line of a chart."""
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    line = page.locator("#picture ~ figure .mark-line path").first.get_attribute("stroke")
    return str(background), str(line)


def test_the_page_and_its_charts_follow_the_scheme(tab: Tab) -> None:
    page = tab.open("bugs/bf16_clip.html")
    light = colours(page)
    page.emulate_media(color_scheme="dark")
    page.wait_for_selector("html[data-charts='dark']", state="attached")
    dark = colours(page)
    assert light[0] != dark[0]
    assert light[1] != dark[1]
    assert "var:" not in dark[1]
    assert tab.errors == []
    for name in ("index.html", "releases.html", "nightlies.html", "bugs/bf16_clip.html"):
        tab.open(name)
        tab.screenshot(f"dark_{name}")


def luminance(colour: str) -> float:
    """The relative luminance of ``rgb(1, 2, 3)``, from 0 to 1, by the WCAG's formula."""
    shares = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    red, green, blue = (
        share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


WORDS = {"body": "body", ".dim, .count": "body", "a.mono": "body", ".tag": ".tag"}
WORDS |= {".affected > .sign": ".tag.affected", ".clean > .sign": ".tag.clean"}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_have_contrast_to_their_background(scheme: str, tab: Tab) -> None:
    tab.page.emulate_media(color_scheme=scheme)
    page = tab.open("index.html")
    style = "([s, p]) => getComputedStyle(document.querySelector(s)).getPropertyValue(p)"
    for words, background in WORDS.items():
        parts = ([words, "color"], [background, "background-color"])
        pair = [page.evaluate(style, part) for part in parts]
        dim, bright = sorted(map(luminance, pair))
        assert (bright + 0.05) / (dim + 0.05) >= 4.5, f"{words} on {background}: {pair}"


def test_the_site_can_be_read_without_scripts(chromium: Any, site: Path) -> None:
    tab = Tab(chromium, site, java_script_enabled=False)
    tab.page.goto((site / "index.html").as_uri())
    assert tab.page.locator("li.bug:visible").count() == len(catalog.names())
    tab.page.goto((site / "bugs" / "bf16_clip.html").as_uri())
    assert tab.page.get_by_text("A script draws this chart").first.is_visible()
    tab.context.close()


@pytest.mark.parametrize("name", ["releases.html", "upstreams/deepspeed.html"])
def test_a_wide_table_scrolls_by_itself_and_shows_its_newest_end_first(
    name: str, chromium: Any, recorded: Path
) -> None:
    phone = Tab(chromium, recorded, viewport=PHONE)
    page = phone.open(name)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    tables = page.evaluate(
        "[...document.querySelectorAll('.scroll:has(> table.heat)')]"
        ".map((e) => [e.scrollWidth - e.clientWidth, e.scrollLeft])"
    )
    assert max(hidden for hidden, _ in tables) > 100, "nothing to scroll: this tests nothing"
    assert all(abs(hidden - position) <= 1 for hidden, position in tables)
    phone.screenshot(f"phone_recorded_{name}")
    phone.context.close()
