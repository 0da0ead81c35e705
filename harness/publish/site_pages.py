"""The pages: the content in the templates. No page needs a network."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import altair
import vl_convert
from jinja2 import Environment
from markupsafe import Markup, escape
from packaging.version import Version

from harness.bugs import advisories, catalog
from harness.bugs.api.spec import HARMS, VISIBILITIES, Lane
from harness.bugs.lookup import Lookup
from harness.publish import changes, docs_tables, markdown_pages
from harness.publish.alive import by_harm
from harness.publish.documents import documents, pictures, rendered
from harness.publish.history import Nightly
from harness.publish.inputs import SiteInputs, Statuses
from harness.publish.shown_bugs import ShownBug
from harness.system.files import Files
from harness.system.installation import for_readers, repository

HERE = Path(__file__).parent
ASSETS = ("site.css", "charts.js", "heat.js", "models.js", "search.js")

SIGNS = {
    "affected": ("affected", "●"),
    "not affected": ("clean", "○"),
    "symptom": ("affected", "●"),
    "clean": ("clean", "○"),
    "reproduced": ("clean", "✓"),
    "not reproduced": ("affected", "✗"),
    "inconclusive": ("unsure", "?"),
    "unsupported": ("unsure", "-"),
    "unjudged": ("unsure", "·"),
    "yanked": ("unsure", "·"),
}
"""For each status, outcome and verdict: the kind, which decides the colour, and the sign."""

LINK = re.compile(
    r"\[(?P<text>[^]]+)\]\((?P<to>https://[^)]+)\)|https://(?:[^\s<>&();,]|&amp;)+[^\s<>&();,.]"
)
"""``[text](address)``, or an address."""
CODE = re.compile(r"``(.+?)``|`([^`\n]+)`", re.DOTALL)


def pages(site_inputs: SiteInputs) -> Files:
    """Every file of the site, by its path in it."""
    bugs = [ShownBug(name, site_inputs) for name in catalog.sound()]
    upstreams, alive = site_inputs.statuses.packages(), by_harm(b.alive for b in bugs if b.alive)
    generated = {"docs/alive.md": markdown_pages.of_living(alive)}
    papers = list(documents(repository(), generated))
    content = {
        "bugs": bugs,
        "upstreams": upstreams,
        "statuses": site_inputs.statuses,
        "nightlies": site_inputs.nightlies,
        "papers": papers,
    }
    files: dict[str, str | bytes] = {
        "index.html": _page(
            "index",
            content,
            **_choices(bugs),
            lanes=list(Lane),
            elsewhere=list(_elsewhere(content)),
        ),
        "advisories.html": _page("advisories", content, without=advisories.without()),
        "releases.html": _page(
            "releases", content, heats=[_heat(site_inputs.statuses, each) for each in upstreams]
        ),
        "models.html": _page("models", content, **_models()),
        "nightlies.html": _page("nightlies", content, **_nightlies(site_inputs.nightlies)),
    }
    for name, text in advisories.files().items():
        files[f"advisories/{name}"] = text
    for document in papers:
        root = "../" * document.file.count("/")
        files[document.file] = _page("document", content, document=document, root=root)
    for bug in bugs:
        page = rendered(f"{bug.folder}/README.md", markdown_pages.of_bug(bug.name), repository())
        files[page.file] = _page("bug", content, bug=bug, document=page, root="../")
    for package in upstreams:
        rows = list(_rows(site_inputs.statuses, package))
        files[f"upstreams/{package}.html"] = _page(
            "upstream",
            content,
            package=package,
            rows=rows,
            heat=_heat(site_inputs.statuses, package),
            root="../",
        )
    files |= {f"assets/{name}": (HERE / "assets" / name).read_bytes() for name in ASSETS}
    return {**files, "assets/vega.js": _vega(), **dict(pictures())}


def _page(template: str, content: Mapping[str, Any], root: str = "", **more: Any) -> str:
    page = _templates().get_template(f"{template}.html.j2")
    return for_readers(page.render(**content, **more, root=root))


@cache
def _templates() -> Environment:
    jinja = markdown_pages.templates(html=True)
    jinja.filters["prose"] = prose
    jinja.globals["signs"] = SIGNS
    return jinja


def prose(text: str) -> Markup:
    """Our own text as HTML: text in backticks becomes code, and addresses become links."""
    marked = CODE.sub(lambda match: f"<code>{match[1] or match[2]}</code>", str(escape(text)))
    link = '<a href="{}">{}</a>'
    return Markup(LINK.sub(lambda m: link.format(m["to"] or m[0], m["text"] or m[0]), marked))


@cache
def _vega() -> str:
    """Vega, Vega-Embed and the Vega-Lite that Altair writes for, in one script, which sets
    ``window.vegaEmbed``."""
    version = ".".join(altair.SCHEMA_VERSION.removeprefix("v").split(".")[:2])
    bundle: Any = vl_convert.javascript_bundle  # its stub requires a snippet, the function does not
    return str(bundle(vl_version=version))


def _choices(bugs: Sequence[ShownBug]) -> dict[str, Any]:
    """The harms and the visibilities that some bug has, worst first."""
    harms = {bug.scenario.harm for bug in bugs}
    visibilities = {bug.scenario.visibility for bug in bugs}
    return {
        "harms": [word for word in HARMS if word in harms],
        "visibilities": [word for word in VISIBILITIES if word in visibilities],
    }


Heat = dict[str, Any]


def _heat(statuses: Statuses, package: str) -> Heat:
    """The table of a package: its releases, and for each bug the status of each."""
    versions = statuses.versions(package)
    return {
        "package": package,
        "versions": [(version, statuses.days.get((package, version), "")) for version in versions],
        "rows": [
            (
                name,
                statuses.others(name, package),
                [statuses.status_of(name, package, version) for version in versions],
            )
            for name in statuses.scenarios(package)
        ],
    }


def _rows(statuses: Statuses, package: str) -> Iterator[Mapping[str, Any]]:
    """A package's releases, highest first, each with the bugs of each status."""
    releases = {
        release.version: release for release in statuses.releases if release.package == package
    }
    for version in sorted({*statuses.versions(package), *releases}, key=Version, reverse=True):
        lookups = {
            name: status
            for name in statuses.scenarios(package)
            if (status := statuses.status_of(name, package, version)).status
        }
        if lookups:
            yield {
                "version": version,
                "day": releases[version].day if version in releases else "",
                "yanked": version in releases and releases[version].yanked,
                "affected": _of(lookups, "affected"),
                "clean": _of(lookups, "not affected"),
                "uncertain": _of(lookups, "inconclusive", "unsupported"),
            }


def _of(lookups: Mapping[str, Lookup], *statuses: str) -> list[tuple[str, Lookup]]:
    return [(name, each) for name, each in lookups.items() if str(each.status) in statuses]


def _elsewhere(content: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What the search finds besides bugs: the address and the text of releases, models, and
    sections of documents."""
    for package in content["upstreams"]:
        yield f"upstreams/{package}.html", f"releases of {package}"
    for line in docs_tables.model_lines():
        yield f"models.html#q={line.model}", f"the model {line.model}"
    for document in content["papers"]:
        yield document.file, document.title
        for anchor, text in document.headings:
            yield f"{document.file}#{anchor}", f"{document.title}: {text}"


def _models() -> dict[str, Any]:
    lines = list(docs_tables.model_lines())
    return {
        "newest": docs_tables.newest_recorded(),
        "lines": lines,
        "relations": list(dict.fromkeys(c.relation for line in lines for c in line.cells)),
        "legend": docs_tables.MODELS_LEGEND,
        "packing": docs_tables.PACKING,
    }


def _nightlies(nightlies: Sequence[Nightly]) -> dict[str, Any]:
    """The content of the page of nightlies: a row for each scenario."""
    names = sorted(
        {name for each in nightlies for name in each.ours}
        | {result.cell.scenario for each in nightlies for result in each.results}
        | {change.scenario for each in nightlies for change in each.changes}
    )
    return {
        "grid": [(name, [_cell(each, name) for each in nightlies]) for name in names],
        "sound": set(catalog.sound()),
        "see": changes.SEE,
    }


def _cell(nightly: Nightly, scenario: str) -> Mapping[str, Any]:
    """The results of a scenario in a nightly: its own verdict, tested releases, and changes."""
    ours = nightly.ours.get(scenario)
    tested = [each for each in nightly.results if each.cell.scenario == scenario]
    changed = [each for each in nightly.changes if each.scenario == scenario]
    lines = [f"our own: {ours.result.verdict} in {ours.seconds:.0f} s"] if ours else []
    lines += [f"{each.package} {each.version}: {each.cell.status}" for each in tested]
    lines += [f"changed: {each.message}" for each in changed]
    return {
        "verdict": str(ours.result.verdict) if ours else "",
        "tested": len(tested),
        "changed": bool(changed),
        "summary": "; ".join(lines),
    }
