"""Lock files, of uv, Poetry, PDM and Pipenv, pylock.toml, and conda's list: every package.

A project may install a package only with an extra or a dependency group, and only its user knows
which are installed. So a package of any extra or group counts as installed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import PurePath
from typing import Any

from packaging.utils import canonicalize_name

from harness.check.installed import (
    EDITABLE,
    FILE,
    FOLDER,
    GIT,
    LEFT_OUT,
    WEB,
    Installed,
    Unknown,
    at_address,
    described,
    from_git,
)
from harness.check.requirement_lines import holds
from harness.check.synonyms import ELSEWHERE
from harness.releases.index import allows_here
from harness.system.documents import as_list, as_table, as_text, as_texts, table_at, text_at
from harness.system.errors import Inconclusive, UserError
from harness.system.text import short

PIPFILE = "Pipfile.lock"

CHOICE = re.compile(
    r"""extra\s*[!=]=\s*(?:"[^"]*"|'[^']*')"""
    r"""|(?:"[^"]*"|'[^']*')\s+(?:not\s+)?in\s+(?:extras|dependency_groups)"""
)
"""A condition on what the user chose to install: ``extra == 'train'``."""
ALWAYS = "python_version >= '3'"

UV_ORIGINS = {
    "git": GIT,
    "url": WEB,
    "path": FILE,
    "directory": FOLDER,
    "editable": EDITABLE,
    "registry": "",
}
Packages = Iterator[tuple[str, Installed]]
"""Packages by canonical name; a name may come several times."""
Reader = Callable[[Mapping[str, Any]], Packages]
POETRY_ORIGINS = {"git": GIT, "url": WEB, "file": FILE, "directory": FOLDER, "legacy": ""}


TOML = (".toml", "uv.lock", "poetry.lock", "pdm.lock")


def read_json(content: Any, file: str) -> Packages:
    """The packages in a Pipfile.lock or in the output of ``conda list --json``."""
    if PurePath(file).name == PIPFILE or (isinstance(content, dict) and "_meta" in content):
        yield from _pipfile(as_table(content, "it"))
    else:
        yield from _conda_list(content, file)


def read_toml(document: Mapping[str, Any], file: str) -> Packages:
    for kind, tables, key, versions, read in FORMATS:
        table = table_at(document, *tables)
        if key in table and (tables or key != "version" or isinstance(table[key], int)):
            version = table[key]
            if key != "version":
                text = as_text(version, "the version of its format")
                if not re.match(r"\d+(\.|$)", text):
                    raise ValueError(f"the version of its format is '{short(text, 40)}'")
                version = int(text.partition(".")[0])
            refuse_unknown_version(file, kind, version, *versions)
            return read(document)
    raise UserError(
        f"{file} is no lock file: it is none of uv.lock, poetry.lock, "
        "pdm.lock, pylock.toml and Pipfile.lock"
    )


def _packages(document: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], str]]:
    """The tables of packages, and their names."""
    for number, package in enumerate(as_list(document.get("package"), "package"), start=1):
        table = as_table(package, f"package {number}")
        if "name" not in table:
            raise ValueError(f"package {number} has no 'name'")
        yield table, as_text(table["name"], f"the name of package {number}")


def _text(table: Mapping[str, Any], key: str, package: str) -> str:
    return text_at(table, key, f"{key} of {package}")


def refuse_unknown_version(file: str, kind: str, version: Any, *versions: int) -> None:
    if version not in versions:
        names = " and ".join(map(str, versions))
        raise Inconclusive(f"{file} has version {version} of {kind}; only {names} can be read")


def _uv(document: Mapping[str, Any]) -> Packages:
    # If it is not for this Python: its markers only distinguish the Pythons that it is for.
    ours = allows_here(_text(document, "requires-python", "the lock"))
    omissions = _omissions(document)
    elsewhere = _needed_elsewhere(document) if ours else set()
    yield from ((name, Unknown(LEFT_OUT)) for name in omissions)
    for package, name in _packages(document):
        if canonicalize_name(name) in omissions or name in elsewhere:
            continue
        where = f"source of {name}"
        source = as_table(package.get("source"), where)
        markers = as_texts(package.get("resolution-markers"), f"resolution-markers of {name}")
        if "virtual" in source or (ours and not _applies(markers)):
            continue  # virtual: the project itself, which is not installed
        origins = [text for key, text in UV_ORIGINS.items() if key in source]
        if not origins:
            raise ValueError(f"{where} is none of {', '.join(UV_ORIGINS)}")
        address = _text(source, "git", where)
        yield _entry(name, _text(package, "version", name), origins[0], address)


OWN = {"virtual", "editable", "directory"}
"""The sources in uv.lock of projects in folders; an extra of such a project may name itself."""


def _needed_elsewhere(document: Mapping[str, Any]) -> set[str]:
    """The packages of uv.lock that something needs, and only under markers that do not hold here.
    Needs begin with the user's own projects, and with what no other package needs."""
    needs: dict[str, list[tuple[str, bool]]] = {}
    roots = set[str]()
    for package, name in _packages(document):  # a fork has several releases of a package
        needs.setdefault(name, []).extend(_uv_needs(package, name))
        if OWN & as_table(package.get("source"), f"source of {name}").keys():
            roots.add(name)
    manifest = table_at(document, "manifest")
    asked = list(_uv_edges(manifest.get("requirements"), "manifest.requirements"))
    roots |= needs.keys() - {name for those in needs.values() for name, _ in those}
    roots |= {name for name, holds_here in asked if holds_here}

    def closure(names: Iterable[str], *, everywhere: bool) -> set[str]:
        waiting, reached = list(names), set[str]()
        while waiting:
            name = waiting.pop()
            if name not in reached:
                reached.add(name)
                waiting += [need for need, here in needs.get(name, ()) if here or everywhere]
        return reached

    all_names = closure(roots | {name for name, _ in asked}, everywhere=True)
    return all_names - closure(roots, everywhere=False)


def _uv_needs(package: Mapping[str, Any], name: str) -> Iterator[tuple[str, bool]]:
    """What a package of uv.lock needs, also in its extras and groups, and whether it does here."""
    yield from _uv_edges(package.get("dependencies"), f"dependencies of {name}")
    for kind in ("optional-dependencies", "dev-dependencies"):
        for group, entries in as_table(package.get(kind), f"{kind} of {name}").items():
            yield from _uv_edges(entries, f"{kind}.{group} of {name}")


def _uv_edges(entries: Any, where: str) -> Iterator[tuple[str, bool]]:
    for entry in as_list(entries, where):
        table = as_table(entry, f"an entry of {where}")
        marker = _text(table, "marker", where)
        yield as_text(table.get("name"), f"name in {where}"), not marker or _applies([marker])


def _entry(
    name: str, version: str, origin: str, address: str, reference: str = ""
) -> tuple[str, Installed]:
    """An entry of a lock file; ``address`` and ``reference`` are those of a repository."""
    name = canonicalize_name(name)
    if origin == GIT and address:
        return name, from_git(name, address, reference, version)
    return name, described(version, origin)


def _omissions(document: Mapping[str, Any]) -> list[str]:
    """The packages that uv's overrides leave out here: something else installs them, such as a
    container. The lock has their releases, with conditions that do not hold."""
    manifest, where = table_at(document, "manifest"), "manifest.overrides"
    markers: dict[str, list[str]] = {}
    for entry in as_list(manifest.get("overrides"), where):
        table = as_table(entry, f"an entry of {where}")
        name = canonicalize_name(as_text(table.get("name"), f"name in {where}"))
        markers.setdefault(name, []).append(_text(table, "marker", where))
    names = [n for n, those in markers.items() if all(those) and not _applies(those)]
    excluded = as_texts(manifest.get("excludes"), "manifest.excludes")
    return list(dict.fromkeys([*names, *map(canonicalize_name, excluded)]))


def _poetry(document: Mapping[str, Any]) -> Packages:
    metadata = table_at(document, "metadata")
    ours = allows_here(_text(metadata, "python-versions", "the lock"))
    for package, name in _packages(document):
        markers = package.get("markers", [])
        if isinstance(markers, Mapping):  # one for each dependency group
            markers = list(markers.values())
        markers = [markers] if isinstance(markers, str) else markers
        if ours and not _applies(as_texts(markers, f"markers of {name}")):
            continue
        where = f"source of {name}"
        source = as_table(package.get("source"), where)
        kind = _text(source, "type", where)
        if kind and kind not in POETRY_ORIGINS:
            raise ValueError(f"{where} is none of {', '.join(POETRY_ORIGINS)}")
        origin = EDITABLE if package.get("develop") else POETRY_ORIGINS[kind or "legacy"]
        address, reference = _text(source, "url", where), _text(source, "reference", where)
        yield _entry(name, _text(package, "version", name), origin, address, reference)


def _pdm(document: Mapping[str, Any]) -> Packages:
    return (one for entry in _packages(document) for one in _locked(*entry, "marker"))


def _pipfile(document: Mapping[str, Any]) -> Packages:
    """The packages of all categories; a user chooses which of them to install."""
    for category, entries in document.items():
        for name, entry in () if category == "_meta" else as_table(entries, category).items():
            yield from _locked(as_table(entry, f"{category}.{name}"), name, "markers")


def _locked(package: Mapping[str, Any], name: str, marker_key: str) -> Packages:
    """An entry of PDM or Pipenv, if it is for this platform and Python."""
    marker = _text(package, marker_key, name)
    if _applies([marker] if marker else []):
        local = EDITABLE if package.get("editable") else FILE
        origins = {"git": GIT, "url": WEB, "file": local, "path": local}
        origin = next((text for key, text in origins.items() if key in package), "")
        version = _text(package, "version", name).removeprefix("==")
        address, reference = _text(package, "git", name), _text(package, "ref", name)
        yield _entry(name, version, origin, address, reference)


def _pylock(document: Mapping[str, Any]) -> Packages:
    from packaging.pylock import Pylock, PylockValidationError

    try:
        lock = Pylock.from_dict(document)
    except PylockValidationError as error:
        raise ValueError(f"{error.context or 'it'} is not as the standard says") from None
    ours = allows_here(str(lock.requires_python or ""))
    for package in lock.packages:
        if ours and not _applies([str(package.marker)] if package.marker else []):
            continue
        version, origin, address, reference = str(package.version or ""), "", "", ""
        if package.vcs:
            origin = f"installed from {package.vcs.type}"
            address, reference = package.vcs.url or "", package.vcs.requested_revision or ""
        elif package.directory:
            origin = EDITABLE if package.directory.editable else FOLDER
        elif package.archive:
            _, archive = at_address(package.archive.url or str(package.archive.path))
            version, origin = version or archive.version, archive.origin
        yield _entry(package.name, version, origin, address, reference)


FORMATS: tuple[tuple[str, tuple[str, ...], str, tuple[int, ...], Reader], ...] = (
    ("pdm.lock", ("metadata",), "lock_version", (4,), _pdm),
    ("pylock", (), "lock-version", (1,), _pylock),
    ("poetry.lock", ("metadata",), "lock-version", (1, 2), _poetry),
    ("uv.lock", (), "version", (1,), _uv),
)
"""The formats in TOML: where each has its version, and those that are read, without minor versions.
uv.lock's version is a number, and later revisions only add to it."""


def _applies(markers: Iterable[str]) -> bool:
    """Whether one of these markers holds here, with some choice of extras and groups."""
    chosen = [CHOICE.sub(ALWAYS, marker) for marker in markers]
    return not chosen or any(map(holds, chosen))


DEVELOP = "<develop>"
"""The channel that conda names for an editable install."""


def _conda_list(content: Any, file: str) -> Packages:
    """The packages in the output, under the names that pip uses.

    Raises UserError for any other JSON, also for that of ``pip list``: it looks like conda's, but
    does not say which packages came from git.
    """
    for entry in content if isinstance(content, list) else [None]:
        package = entry if isinstance(entry, dict) else {}
        name, version = package.get("name"), package.get("version")
        if not (isinstance(name, str) and isinstance(version, str) and "channel" in package):
            raise UserError(
                f"{file} is not what 'conda list --json' writes; for pip, use the output of pip "
                "freeze"
            )
        name = canonicalize_name(name)
        origin = EDITABLE if package["channel"] == DEVELOP else ""
        yield ELSEWHERE.get(name, name), described(version, origin)
