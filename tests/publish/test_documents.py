"""The site's documents: links lead to pages of the site, and headings have GitHub's ids."""

from __future__ import annotations

import posixpath
import re

from harness.publish.documents import documents, slug
from harness.system.files import ROOT

REPOSITORY = "https://example.org/r"
FOUND = {one.file: one for one in documents(REPOSITORY, {})}


def test_every_document_of_the_checkout_is_there() -> None:
    assert {"docs/README.html", "docs/check.html", "docs/CONTRIBUTING.html"} <= set(FOUND)
    assert FOUND["docs/check.html"].title.startswith("check")


def test_each_link_between_documents_leads_to_a_page_and_to_a_heading_of_it() -> None:
    for file, document in FOUND.items():
        for target, anchor in re.findall(
            r'href="(?![a-z]+:)([^"#]*)#?([^"]*)"', str(document.html)
        ):
            place = posixpath.normpath(posixpath.join(posixpath.dirname(file), target))
            place = place if target else file
            if place.startswith("bugs/"):
                continue
            assert place in FOUND, f"{document.path}: {target}"
            ids = {key for key, _ in FOUND[place].headings}
            assert not anchor or anchor in ids, f"{document.path}: {target}#{anchor}"


def test_what_is_not_in_the_site_is_in_the_repository() -> None:
    text = str(FOUND["docs/README.html"].html)
    assert f'href="{REPOSITORY}/blob/main/LICENSE"' in text
    assert (ROOT / "LICENSE").is_file()


def test_a_heading_has_the_id_that_github_gives() -> None:
    assert slug("Does my stack have one of these bugs?") == "does-my-stack-have-one-of-these-bugs"
    assert slug("`models`: are they right") == "models-are-they-right"
