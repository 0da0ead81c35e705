"""The documents of the checkout as pages of the site: the same Markdown, rendered."""

from __future__ import annotations

import itertools
import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup

from harness.system.files import ROOT

FOLDER = "docs"
"""The folder of the pages in the site, and of most documents in the checkout."""

OUTSIDE = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
"""Documents outside that folder."""


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
        return address(self.path)


def documents(repository: str) -> Iterator[Document]:
    """All documents; an installed package has none. ``repository`` has all other files."""
    files = [*(ROOT / name for name in OUTSIDE), *sorted((ROOT / FOLDER).rglob("*.md"))]
    for file in files:
        if file.is_file():
            yield _rendered(file.relative_to(ROOT).as_posix(), file.read_text("utf-8"), repository)


def pictures() -> Iterator[tuple[str, bytes]]:
    """The pictures of the documents, by their path in the site."""
    for file in sorted((ROOT / FOLDER / "pictures").glob("*.png")):
        yield f"{FOLDER}/pictures/{file.name}", file.read_bytes()


def address(path: str) -> str:
    """The path of a document's page in the site."""
    inside = posixpath.relpath(path, FOLDER) if path.startswith(f"{FOLDER}/") else path
    return f"{FOLDER}/{Path(inside).with_suffix('.html').as_posix()}"


def slug(text: str) -> str:
    """The id of a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")


def _rendered(path: str, text: str, repository: str) -> Document:
    parser = MarkdownIt("commonmark").enable("table")
    tokens = parser.parse(text)
    title, headings = "", []
    for opening, inline in itertools.pairwise(tokens):
        if opening.type == "heading_open":
            words = _plain(inline)
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


def _plain(inline: Token) -> str:
    return "".join(c.content for c in inline.children or () if c.type in ("text", "code_inline"))


def _target(target: str, path: str, repository: str) -> str:
    """A link of a document, rewritten for its page."""
    if re.match(r"[a-z]+:|#|//", target):
        return target
    file, mark, anchor = target.partition("#")
    whole = posixpath.normpath(posixpath.join(posixpath.dirname(path), file))
    folder = posixpath.dirname(address(path))
    if bug := re.fullmatch(r"scenarios/\w+/(\w+)(/README\.md)?", whole):
        destination = f"bugs/{bug[1]}.html"
    elif whole in OUTSIDE or (whole.startswith(f"{FOLDER}/") and whole.endswith(".md")):
        destination = address(whole)
    elif whole.startswith(f"{FOLDER}/pictures/"):
        destination = whole
    else:
        return f"{repository}/blob/main/{whole}{mark}{anchor}"
    return posixpath.relpath(destination, folder) + mark + anchor
