"""Lock files, of uv, Poetry, PDM and Pipenv, pylock.toml, and conda's list: every package.

A project may install a package only with an extra or a dependency group, and only its user knows
which are installed. So a package of any extra or group counts as installed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from packaging.markers import Marker
from packaging.utils import canonicalize_name
from packaging.version import Version

from harness.check.installed import EDITABLE, FILE, FOLDER, GIT, WEB, Listed, at_address
from harness.check.source import PackageFile, content_of
from harness.check.synonyms import ELSEWHERE
from harness.releases.index import allows_here
from harness.system.errors import Inconclusive, UserError
from harness.system.text import complaint

UV = 1
"""The version of uv.lock that is read; later revisions of it only add to it."""
POETRY = (1, 2)
"""The versions of poetry.lock that are read, without minor versions."""
PYLOCK = 1
PDM = 4
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
POETRY_ORIGINS = {"git": GIT, "url": WEB, "file": FILE, "directory": FOLDER, "legacy": ""}


def entries(source: PackageFile) -> list[Listed]:
    """The packages in a lock file, those for another platform or Python left out.

    Raises UserError for a file that is none, and Inconclusive for one of an unknown version.
    """
    if source.is_json and source.path.name != PIPFILE:
        return _conda_entries(source)
    document = _document(source)
    try:
        return list(_entries(document, source.name))
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise UserError(f"{source.name} is not a lock file: {complaint(error)}") from None


def _document(source: PackageFile) -> dict[str, Any]:
    if source.is_json:
        return {PIPFILE: content_of(source.name, source.text, "JSON")}
    content: dict[str, Any] = content_of(source.name, source.text, "TOML")
    return content


def _entries(document: Mapping[str, Any], file: str) -> Iterator[Listed]:
    if PIPFILE in document:
        return _pipfile(document[PIPFILE])
    if version := document.get("metadata", {}).get("lock_version"):
        _known(file, "pdm.lock", _major(version), PDM)
        return _pdm(document)
    if "lock-version" in document:
        _known(file, "pylock", _major(document["lock-version"]), PYLOCK)
        return _pylock(document)
    if "lock-version" in document.get("metadata", {}):
        _known(file, "poetry.lock", _major(document["metadata"]["lock-version"]), *POETRY)
        return _poetry(document)
    if isinstance(document.get("version"), int):
        _known(file, "uv.lock", document["version"], UV)
        return _uv(document)
    raise UserError(
        f"{file} is no lock file: it is none of uv.lock, poetry.lock, "
        "pdm.lock, pylock.toml and Pipfile.lock"
    )


def _major(version: str) -> int:
    return Version(version).major


def _known(file: str, kind: str, version: int, *known: int) -> None:
    if version not in known:
        names = " and ".join(map(str, known))
        raise Inconclusive(f"{file} has version {version} of {kind}; only {names} can be read")


def _uv(document: Mapping[str, Any]) -> Iterator[Listed]:
    # If it is not for this Python: its markers only distinguish the Pythons that it is for.
    ours = allows_here(document.get("requires-python", ""))
    for package in document.get("package", []):
        name, source = canonicalize_name(package["name"]), package["source"]
        if "virtual" in source or (ours and not _applies(package.get("resolution-markers", []))):
            continue  # virtual: the project itself, which is not installed
        (origin,) = (text for key, text in UV_ORIGINS.items() if key in source)
        yield Listed(name, package.get("version", ""), origin)


def _poetry(document: Mapping[str, Any]) -> Iterator[Listed]:
    ours = allows_here(document["metadata"].get("python-versions", ""))
    for package in document.get("package", []):
        markers = package.get("markers", [])
        if isinstance(markers, Mapping):  # by dependency group
            markers = list(markers.values())
        elif isinstance(markers, str):
            markers = [markers]
        if ours and not _applies(markers):
            continue
        source = package.get("source", {"type": "legacy"})
        origin = EDITABLE if package.get("develop") else POETRY_ORIGINS[source["type"]]
        yield Listed(canonicalize_name(package["name"]), package["version"], origin)


def _pdm(document: Mapping[str, Any]) -> Iterator[Listed]:
    for package in document.get("package", []):
        marker = package.get("marker")
        if _applies([marker] if marker else []):
            origins = {
                "git": GIT,
                "url": WEB,
                "path": EDITABLE if package.get("editable") else FILE,
            }
            origin = next((text for key, text in origins.items() if key in package), "")
            yield Listed(canonicalize_name(package["name"]), package.get("version", ""), origin)


def _pipfile(document: Mapping[str, Any]) -> Iterator[Listed]:
    for section in ("default", "develop"):
        for name, package in document.get(section, {}).items():
            if _applies([package["markers"]] if "markers" in package else []):
                origin = GIT if "git" in package else FILE if "file" in package else ""
                version = str(package.get("version", "")).removeprefix("==")
                yield Listed(canonicalize_name(name), version, origin)


def _pylock(document: Mapping[str, Any]) -> Iterator[Listed]:
    from packaging.pylock import Pylock, PylockValidationError

    try:
        lock = Pylock.from_dict(document)
    except PylockValidationError as error:
        raise ValueError(str(error)) from None
    ours = allows_here(str(lock.requires_python or ""))
    for package in lock.packages:
        if ours and not _applies([str(package.marker)] if package.marker else []):
            continue
        version, origin = str(package.version or ""), ""
        if package.vcs:
            origin = f"installed from {package.vcs.type}"
        elif package.directory:
            origin = EDITABLE if package.directory.editable else FOLDER
        elif package.archive:
            _, found = at_address(package.archive.url or str(package.archive.path))
            version, origin = version or found.version, found.origin
        yield Listed(package.name, version, origin)


def _applies(markers: Iterable[str]) -> bool:
    """Whether one of these markers holds here, with some choice of extras and groups."""
    chosen = [CHOICE.sub(ALWAYS, marker) for marker in markers]
    return not chosen or any(Marker(marker).evaluate() for marker in chosen)


DEVELOP = "<develop>"
"""The channel that conda names for an editable install."""


def _conda_entries(source: PackageFile) -> list[Listed]:
    """The packages in the output, by the names that pip has for them.

    Raises UserError for any other JSON, also for that of ``pip list``: it looks like conda's, but
    does not say which packages came from git.
    """
    content = content_of(source.name, source.text, "JSON")
    if not (isinstance(content, list) and all(isinstance(one, dict) for one in content)):
        raise UserError(f"{source.name} is not what 'conda list --json' writes")
    return [_conda_entry(one, source.name) for one in content]


def _conda_entry(package: Mapping[str, Any], file: str) -> Listed:
    name, version = package.get("name"), package.get("version")
    if not (isinstance(name, str) and isinstance(version, str) and "channel" in package):
        raise UserError(
            f"{file} is not what 'conda list --json' writes; for pip, use the output of pip freeze"
        )
    name = canonicalize_name(name)
    origin = EDITABLE if package["channel"] == DEVELOP else ""
    return Listed(ELSEWHERE.get(name, name), version, origin)
