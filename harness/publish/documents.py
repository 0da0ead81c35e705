"""The documents of the checkout as pages of the site: the same Markdown, rendered."""

from __future__ import annotations

import itertools
import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt
from markupsafe import Markup

from harness.system.files import ROOT

FOLDER = "docs"
"""The folder of the pages in the site, and of most documents in the checkout."""

OUTSIDE = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
"""Documents outside that folder."""

MADE = ("scenarios/", f"{FOLDER}/alive.md")
"""What the site makes itself: an installed package has no other documents."""


@dataclass(frozen=True)
class Document:
    """A Markdown file, rendered."""

    path: str
    """In the checkout."""
    title: str
    html: Markup
    headings: tuple[tuple[str, str], ...]
    """The id and the text of each heading below the title."""

    @property
    def file(self) -> str:
        """The path of its page in the site."""
        return address(self.path) or self.path


def documents(repository: str, generated: Mapping[str, str]) -> Iterator[Document]:
    """All documents of the checkout; an installed package has only those that are ``generated``,
    by their path. ``repository`` has all other files."""
    files = [*(ROOT / name for name in OUTSIDE), *sorted((ROOT / FOLDER).rglob("*.md"))]
    paths = [file.relative_to(ROOT).as_posix() for file in files if file.is_file()]
    for path in dict.fromkeys([*paths, *generated]):
        text = generated.get(path) or (ROOT / path).read_text("utf-8")
        yield rendered(path, text, repository)


def pictures() -> Iterator[tuple[str, bytes]]:
    """The pictures of the documents, by their path in the site."""
    for file in sorted((ROOT / FOLDER / "pictures").glob("*.png")):
        yield f"{FOLDER}/pictures/{file.name}", file.read_bytes()


def address(path: str) -> str | None:
    """The path in the site of a file of the checkout; None if the site does not have it."""
    if bug := re.fullmatch(r"scenarios/\w+/(\w+)(/README\.md)?", path):
        return f"bugs/{bug[1]}.html"
    if path.startswith(f"{FOLDER}/pictures/"):
        return path
    if path in OUTSIDE:
        return f"{FOLDER}/{Path(path).stem}.html"
    if path.startswith(f"{FOLDER}/") and path.endswith(".md"):
        return str(Path(path).with_suffix(".html"))
    return None


def slug(text: str) -> str:
    """The id of a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")


def rendered(path: str, text: str, repository: str) -> Document:
    """A Markdown file of the checkout as a page; ``repository`` has the files that have none."""
    parser = MarkdownIt("commonmark").enable("table")
    tokens = parser.parse(text)
    title, headings = "", []
    for opening, inline in itertools.pairwise(tokens):
        if opening.type == "heading_open":
            parts = (c for c in inline.children or () if c.type in ("text", "code_inline"))
            words = "".join(part.content for part in parts)
            opening.attrSet("id", slug(words))
            if opening.tag == "h1" and not title:
                title = words
            else:
                headings.append((slug(words), words))
        if opening.type == "table_open":
            opening.attrSet("class", "wide")
    for token in tokens:
        for child in token.children or ():
            for name in ("href", "src"):
                if (target := child.attrGet(name)) is not None:
                    child.attrSet(name, _target(str(target), path, repository))
    html = Markup(parser.renderer.render(tokens, parser.options, {}))
    return Document(path, title or path, html, tuple(headings))


def _target(target: str, path: str, repository: str) -> str:
    """A link of a document, rewritten for its page."""
    if re.match(r"[a-z]+:|#|//", target):
        return target
    file, mark, anchor = target.partition("#")
    whole = posixpath.normpath(posixpath.join(posixpath.dirname(path), file))
    is_made = whole.startswith(MADE) or (ROOT / whole).is_file()
    if (page := address(whole)) and is_made:
        return posixpath.relpath(page, posixpath.dirname(address(path) or "")) + mark + anchor
    return f"{repository}/blob/main/{whole}{mark}{anchor}"
