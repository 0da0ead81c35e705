"""The pages: what is told, put into the templates. No page asks anything of a network."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import altair
import vl_convert
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from packaging.version import Version

from harness import catalog
from harness.site import timelines
from harness.site.bugs import Bug
from harness.site.inputs import Material, Nightly
from harness.site.output import Files
from harness.site.statuses import Answers, Standing
from harness.spec import GOES_WRONG, Lane
from harness.sweep import changes

HERE = Path(__file__).parent
ASSETS = ("site.css", "charts.js", "heat.js", "search.js")

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
"""Of each word that is said of a release or a run: the kind, which decides the colour; the sign."""

LINK = re.compile(r"https://(?:[^\s<>&();,]|&amp;)+[^\s<>&();,.]")
CODE = re.compile(r"``(.+?)``|`([^`\n]+)`", re.DOTALL)


def pages(material: Material) -> Files:
    """Every file of the site, by its path in it."""
    bugs = [Bug(name, material) for name in catalog.sound()]
    upstreams = material.answers.packages()
    told = {
        "bugs": bugs,
        "upstreams": upstreams,
        "answers": material.answers,
        "nights": material.nights,
        "material": material,
    }
    made: dict[str, str | bytes] = {
        "index.html": _page("index", told, wrongs=_wrongs(bugs), lanes=list(Lane)),
        "releases.html": _page("releases", told, heats=[_heat(told, each) for each in upstreams]),
        "nights.html": _page("nights", told, **_nights(material)),
    }
    for bug in bugs:
        made[f"bugs/{bug.name}.html"] = _page("bug", told, bug=bug, root="../")
    for package in upstreams:
        rows = list(_rows(material.answers, package))
        made[f"upstreams/{package}.html"] = _page(
            "upstream", told, package=package, rows=rows, heat=_heat(told, package), root="../"
        )
    return made | _assets()


def _page(template: str, told: Mapping[str, Any], root: str = "", **more: Any) -> str:
    return _templates().get_template(f"{template}.html.j2").render(**told, **more, root=root)


@cache
def _templates() -> Environment:
    made = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["prose"] = prose
    made.globals["signs"] = SIGNS
    return made


def prose(text: str) -> Markup:
    """Text of ours as HTML: what is in backticks as code, addresses as links, all else as it is."""
    marked = CODE.sub(lambda found: f"<code>{found[1] or found[2]}</code>", str(escape(text)))
    return Markup(LINK.sub(lambda found: f'<a href="{found[0]}">{found[0]}</a>', marked))


def _assets() -> dict[str, str | bytes]:
    own = {f"assets/{name}": (HERE / "assets" / name).read_bytes() for name in ASSETS}
    return {**own, "assets/vega.js": _vega()}


@cache
def _vega() -> str:
    """Vega, Vega-Embed and the Vega-Lite that Altair writes for, in one script, which sets
    ``window.vegaEmbed``."""
    version = ".".join(altair.SCHEMA_VERSION.removeprefix("v").split(".")[:2])
    bundle: Any = vl_convert.javascript_bundle  # its stub wants a snippet, and it takes none
    return str(bundle(vl_version=version))


def _wrongs(bugs: Sequence[Bug]) -> list[str]:
    """What goes wrong in some bug, in the order of the words."""
    return [word for word in GOES_WRONG if any(b.scenario.goes_wrong == word for b in bugs)]


Heat = dict[str, Any]


def _heat(told: Mapping[str, Any], package: str) -> Heat:
    """The table of a package: its releases, and for each bug how each of them stands."""
    answers: Answers = told["answers"]
    versions = answers.versions(package)
    return {
        "package": package,
        "versions": [(version, answers.days.get((package, version), "")) for version in versions],
        "rows": [
            (
                name,
                answers.beside(name, package),
                [answers.standing(name, package, version) for version in versions],
            )
            for name in answers.scenarios(package)
        ],
    }


def _rows(answers: Answers, package: str) -> Iterator[Mapping[str, Any]]:
    """A package's releases, the newest first, each with how it stands towards each bug."""
    releases = {
        release.version: release for release in answers.releases if release.package == package
    }
    for version in sorted({*answers.versions(package), *releases}, key=Version, reverse=True):
        standings = {
            name: standing
            for name in answers.scenarios(package)
            if (standing := answers.standing(name, package, version))
        }
        if standings:
            yield {
                "version": version,
                "day": releases[version].day if version in releases else "",
                "yanked": version in releases and releases[version].yanked,
                "affected": _of(standings, "affected"),
                "clean": _of(standings, "not affected"),
                "silent": _of(standings, "inconclusive", "unsupported"),
            }


def _of(standings: Mapping[str, Standing], *answers: str) -> list[tuple[str, Standing]]:
    return [(name, each) for name, each in standings.items() if str(each.status) in answers]


def _nights(material: Material) -> dict[str, Any]:
    """What the page of the nights tells: the grid of them, how long they took."""
    nights = material.nights
    names = sorted(
        {own.scenario for each in nights for own in each.own}
        | {asked.cell.scenario for each in nights for asked in each.asked}
        | {change.scenario for each in nights for change in each.changes}
    )
    took = [(_named(each), each.seconds) for each in nights]
    return {
        "grid": [(name, [_cell(each, name) for each in nights]) for name in names],
        "took": timelines.durations(took) if len(took) > 1 else None,
        "minutes": sum(seconds for _, seconds in took) / 60,
        "sound": set(catalog.sound()),
        "see": changes.SEE,
    }


def _named(nightly: Nightly) -> str:
    replay = " (replay)" if nightly.night.kind == "replay" else ""
    return f"{nightly.name}{replay}"


def _cell(nightly: Nightly, scenario: str) -> Mapping[str, Any]:
    """What became of a scenario on a night: its own verdict, what it was asked, what changed."""
    own = next((each for each in nightly.own if each.scenario == scenario), None)
    asked = [each for each in nightly.asked if each.cell.scenario == scenario]
    changed = [each for each in nightly.changes if each.scenario == scenario]
    told = [f"our own: {own.verdict} in {own.seconds:.0f} s"] if own else []
    told += [f"{each.package} {each.version}: {each.cell.status}" for each in asked]
    told += [f"changed: {each.told}" for each in changed]
    return {
        "verdict": own.verdict if own else "",
        "asked": len(asked),
        "changed": bool(changed),
        "told": "; ".join(told),
    }
