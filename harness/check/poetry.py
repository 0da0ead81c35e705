"""Read the tables of Poetry in pyproject.toml, and Pipfile, whose entries are like them.

An entry that does not hold for this Python or platform is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

from harness.check import constraints, other_indices
from harness.check.requirement_lines import Line, holds, parse_entry
from harness.check.sections import Content, Part, key
from harness.system.documents import as_table, as_text, as_texts, table_at, text_at
from harness.system.text import short

GROUPS, EXTRAS = "tool.poetry.group", "tool.poetry.extras"
MARKERS = (
    *("os_name", "sys_platform", "platform_machine", "platform_python_implementation"),
    *("platform_release", "platform_system", "platform_version", "python_version"),
    *("python_full_version", "implementation_name", "implementation_version"),
)
"""Names that a Pipfile has for markers: ``sys_platform = "== 'linux'"``."""


def read(poetry: Mapping[str, Any], content: Content, file: str) -> None:
    """Read Poetry's own tables. An optional package belongs to the extras that name it."""
    where = "tool.poetry.dependencies"
    extras_of: dict[str, list[str]] = {}
    for extra, names in as_table(poetry.get("extras"), EXTRAS).items():
        content.add(extra, f"{EXTRAS}.{extra}")
        for name in as_texts(names, f"{EXTRAS}.{extra}"):
            extras_of.setdefault(key(name), []).append(extra)
    for name, entry in as_table(poetry.get("dependencies"), where).items():
        if name == "python":
            text = as_text(entry, f"{where}.python")
            content.python = _valid(constraints.python_of_poetry, text, f"{where}.python")
            continue
        for line, is_optional in _entry(name, entry, where, content, file):
            for extra in extras_of.get(key(name), ()) if is_optional else ():
                content.add(extra, f"{EXTRAS}.{extra}", [line])
            if not is_optional:
                content.add("", where, [line])
    groups = dict(as_table(poetry.get("group"), GROUPS))
    tables = [(name, as_table(table, f"{GROUPS}.{name}")) for name, table in groups.items()]
    old_group = as_table(poetry.get("dev-dependencies"), f"{GROUPS}.dev.dependencies")
    for group, table in [*tables, *([("dev", {"dependencies": old_group})] if old_group else [])]:
        where = f"{GROUPS}.{group}"
        content.add(group, where)
        for name, entry in as_table(table.get("dependencies"), f"{where}.dependencies").items():
            content.add(
                group, where, [line for line, _ in _entry(name, entry, where, content, file)]
            )
    parts = content.parts(GROUPS)
    for group, table in tables:
        where = f"{GROUPS}.{group}"
        for name in as_texts(table.get("include-groups"), f"{where}.include-groups"):
            content.add(group, where, included_group(parts, name, where))


def included_group(parts: Mapping[str, list[Part]], name: str, where: str) -> list[Part]:
    """The groups of this name, which another one includes."""
    if key(name) not in parts:
        raise ValueError(f"{where} includes the group '{short(name)}', which is not there")
    return parts[key(name)]


NO_GROUPS = ("source", "requires", "scripts", "pipenv", "pipfile")
"""Tables of a Pipfile that have no packages."""


def read_pipfile(document: Mapping[str, Any], file: str) -> Content:
    """What a Pipfile declares; each further table with packages is a group."""
    content = Content(indices=other_indices.addresses(document))
    content.add("", "packages")
    for table, entries in document.items():
        if table in NO_GROUPS:
            continue
        group = {"packages": "", "dev-packages": "dev"}.get(table, table)
        for name, entry in as_table(entries, table).items():
            content.add(
                group, table, [line for line, _ in _entry(name, entry, table, content, file)]
            )
    requires = table_at(document, "requires")
    for name in ("python_version", "python_full_version"):
        if name in requires:
            version = as_text(requires[name], f"requires.{name}")
            content.python = f"=={version}" + (".*" if name == "python_version" else "")
    return content


def _entry(
    name: str, entry: Any, where: str, content: Content, file: str
) -> Iterator[tuple[Line, bool]]:
    """The lines for an entry of Poetry or of a Pipfile, and whether only an extra installs it."""
    where = f"{where}.{name}"
    for choice in entry if isinstance(entry, list) else [entry]:
        table = {"version": choice} if isinstance(choice, str) else as_table(choice, where)
        extras = ",".join(as_texts(table.get("extras"), f"{where}.extras"))
        package = f"{name}[{extras}]" if extras else name
        address = address_of(table, where)
        version = as_text(table.get("version", "*"), f"{where}.version")
        specifier = f" @ {address}" if address else _valid(constraints.of_poetry, version, where)
        line = parse_entry(f"{package}{specifier}")
        if "|" in version and not address:
            which = f"which of the alternatives '{short(version)}' is left open"
            content.notes.append(f"{file}, {where}: {which}")
        index = text_at(table, "source" if "source" in table else "index", where)
        lines = other_indices.from_index(line, index, content.indices)
        for each in lines if _applies(table, where) else [Line(line.text)]:
            yield each, bool(table.get("optional"))


def _valid(read: Any, text: str, where: str) -> Any:
    """What a function reads from a text; its error names the place."""
    try:
        return read(text)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def _applies(table: Mapping[str, Any], where: str) -> bool:
    """Whether an entry holds here, under all names that Poetry and Pipenv use for markers."""
    tests = {
        "markers": holds,
        "python": constraints.allows_python,
        "platform": constraints.allows_platform,
    }
    results = [
        _valid(test, text, f"{where}.{name}")
        for name, test in tests.items()
        if name in table
        if (text := as_text(table[name], f"{where}.{name}")) or name != "markers"
    ]
    markers = [f"{n} {as_text(table[n], f'{where}.{n}')}" for n in MARKERS if n in table]
    return all([*results, *(holds_at(marker, where) for marker in markers)])


def holds_at(marker: str, where: str) -> bool:
    return bool(_valid(holds, marker, where))


def address_of(table: Mapping[str, Any], where: str) -> str:
    """The address of a package that does not come from an index; empty otherwise.

    A path is an address too: its folder does not show which package is there, but the entry does.
    """
    for name in ("git", "url", "path", "file"):
        if name in table:
            text = as_text(table[name], f"{where}.{name}")
            place = quote(text, safe="/:@+.~%=&?#-_")
            if name != "git":
                return place if re.match(r"[a-z+]+:", place) else f"file:{place}"
            # git@host:path, as ssh has it
            place = re.sub(r"^([\w.-]+@[\w.-]+):(?!/)", r"ssh://\1/", place)
            key = next((key for key in ("tag", "rev", "ref") if key in table), "")
            tag = quote(text_at(table, key, f"{where}.{key}"), safe="/.+-_")
            place = f"{place}@{tag}" if key else place
            return place if place.startswith("git+") else f"git+{place}"
    return ""
