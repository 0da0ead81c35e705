"""Makes the site's pictures in the docs again, from the recorded runs.

python -m tests.pictures
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from harness.cli.site import SITE
from harness.publish.inputs import collect
from harness.publish.site_pages import pages
from harness.system.files import ROOT, replace_folder
from tests.chromium import executable

OUT = ROOT / "docs" / "pictures"
WIDE, PHONE = (1080, 720), (360, 740)

SHOTS = {
    "catalogue": ("index.html", "", WIDE, "light"),
    "releases": ("releases.html", "", (1080, 1000), "light"),
    "dark": ("bugs/fp16_overflow.html", "#picture", WIDE, "dark"),
    "phone": ("bugs/rope_zero_init.html", "#picture", PHONE, "light"),
}
"""For each picture: the page, the part to show (from an id on), the size of the window in pixels,
and the color scheme."""


def main() -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as started:
        site = Path(folder) / "site"
        replace_folder(site, pages(collect(None, print)), SITE)
        browser = started.chromium.launch(executable_path=executable(), args=["--no-sandbox"])
        for name, (file, part, (width, height), scheme) in SHOTS.items():
            page = browser.new_page(viewport={"width": width, "height": height})
            page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
            page.goto((site / file).as_uri())
            if page.locator(".chart").count():
                page.wait_for_selector("html[data-charts]", state="attached")
            _keep(page, part, OUT / f"{name}.png")
            page.close()
        browser.close()


def _keep(page: Page, part: str, file: Path) -> None:
    if part:
        page.locator(part).evaluate("(element) => element.scrollIntoView()")
    page.screenshot(path=file)


if __name__ == "__main__":
    main()
