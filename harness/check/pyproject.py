"""Read what pyproject.toml and setup.cfg declare.

The standard's tables are read, and those of Poetry, PDM, uv, Rye, Hatch, Flit and setuptools.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from configparser import ConfigParser
from datetime import date, datetime, timedelta, timezone
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from harness.check import other_indices, poetry
from harness.check.constraints import of_poetry
from harness.check.requirement_lines import (
    Include,
    Line,
    Purpose,
    holds,
    parse_entry,
    parse_line,
    requirement_line,
)
from harness.check.sections import Content, Part, key
from harness.check.unread import PIXI
from harness.system.documents import as_list, as_table, as_text, as_texts, table_at, text_at
from harness.system.text import short

GROUPS, EXTRAS = "dependency-groups", "project.optional-dependencies"
DYNAMIC = "tool.setuptools.dynamic"
PDM = "tool.pdm.dev-dependencies"
LISTS = {
    "project.dependencies": "",
    f"{EXTRAS}.*": "*",
    "tool.uv.dev-dependencies": "dev",
    "tool.rye.dev-dependencies": "dev",
    f"{PDM}.*": "*",
    "tool.hatch.envs.*.dependencies": "*",
    "tool.hatch.envs.*.extra-dependencies": "*",
    "tool.flit.metadata.requires": "",
    "tool.flit.metadata.requires-extra.*": "*",
}
"""Where lists of requirements are, and the extra or the group that each is: ``*`` is any name."""


def read(document: Mapping[str, Any], file: str) -> Content:
    """Read what a pyproject.toml declares. Raises ValueError, with the place, for an invalid
    entry."""
    content = Content(indices=other_indices.addresses(document))
    project = table_at(document, "project")
    for path, group in LISTS.items():
        for where, name, entries in _lists_at(document, path.split(".")):
            lines = [
                parse_line(text)
                if where.startswith(PDM) and text.startswith("-e ")
                else parse_entry(text)
                for text in as_texts(entries, where)
            ]
            content.add(name if group == "*" else group, where, lines)
    _setuptools(document, content, file)
    _groups(table_at(document, GROUPS), content)
    poetry.read(table_at(document, "tool", "poetry"), content, file)
    names = [
        as_text(table["name"], f"{where}.name")
        for where in ("project", "tool.poetry")
        if "name" in (table := table_at(document, *where.split(".")))
    ]
    own_extras(content, next(iter(names), ""), file, EXTRAS, poetry.EXTRAS)
    _uv(document, content)
    if python := project.get("requires-python"):
        content.python = as_text(python, "project.requires-python")
    for tool in ("pixi", "conda-lock", "unidep"):
        if table_at(document, "tool", tool):
            content.notes.append(f"{file}: the tables of tool.{tool} are not read: {PIXI}")
    return content


def _lists_at(
    value: Any, keys: Sequence[str], where: str = "", name: str = ""
) -> Iterator[tuple[str, str, Any]]:
    """The values at a path of keys, of which one may be any, ``*``: where each is, and that key."""
    if not keys:
        yield where, name, value
        return
    table = as_table(value, where)
    for entry in table if keys[0] == "*" else {keys[0]} & table.keys():
        place = f"{where}.{entry}" if where else entry
        yield from _lists_at(table[entry], keys[1:], place, entry if keys[0] == "*" else name)


def _setuptools(document: Mapping[str, Any], content: Content, file: str) -> None:
    """What setuptools reads from other files."""
    fields = as_texts(table_at(document, "project").get("dynamic"), "project.dynamic")
    dynamic = table_at(document, *DYNAMIC.split("."))
    if "dependencies" in fields and "dependencies" in dynamic:
        content.add("", f"{DYNAMIC}.dependencies", _included(dynamic, "dependencies", DYNAMIC))
    elif "dependencies" in fields and not table_at(document, "tool", "poetry", "dependencies"):
        content.notes.append(f"{file}: its dependencies are dynamic: only its build names them")
    where = f"{DYNAMIC}.optional-dependencies"
    extras = as_table(dynamic.get("optional-dependencies"), where)
    for name in extras:
        # An extra of the project may need another one, so both are extras to us.
        content.add(name, f"{EXTRAS}.{name}", _included(extras, name, where))


def _included(dynamic: Mapping[str, Any], name: str, above: str) -> list[Line]:
    """The lines for files with requirements."""
    where = f"{above}.{name}.file"
    files = as_table(dynamic[name], f"{above}.{name}").get("file")
    return list(map(include_line, [files] if isinstance(files, str) else as_texts(files, where)))


def include_line(file: str) -> Line:
    return Line(f"-r {file}", (Include(file),))


def _groups(groups: Mapping[str, Any], content: Content) -> None:
    for name in groups:
        content.add(name, f"{GROUPS}.{name}")
    parts = content.parts(GROUPS)
    for name, entries in groups.items():
        where = f"{GROUPS}.{name}"
        for entry in as_list(entries, where):
            if isinstance(entry, str):
                content.add(name, where, [parse_entry(entry)])
            else:
                group = as_table(entry, f"an entry of {where}").get("include-group")
                text = as_text(group, f"include-group of {where}")
                content.add(name, where, poetry.included_group(parts, text, where))


def own_extras(content: Content, project: str, file: str, *kinds: str) -> None:
    """Replace requirements of the project itself, ``ours[train]``, by its extras of some kinds."""
    if not project:
        return
    extras = content.parts(*kinds)
    for section in content.sections.values():
        lines: list[Line | Part] = []
        for line in section.lines:
            entry = line.requirement if isinstance(line, Line) else None
            if not (entry and entry.extras and key(entry.name) == key(project)):
                lines.append(line)
            elif not entry.marker or holds(entry.marker):
                for extra in sorted(entry.extras):
                    lines += extras.get(key(extra), ())
                    if key(extra) not in extras:
                        content.notes.append(f"{file}, {section.where}: it has no extra {extra}")
        section.lines = lines


def _uv(document: Mapping[str, Any], content: Content) -> None:
    """Apply the settings, overrides and sources of uv, and the overrides of PDM."""
    uv = table_at(document, "tool", "uv")
    content.day = _day(str(uv.get("exclude-newer", "")))
    if (which := text_at(uv, "resolution")) not in ("", "highest"):
        content.unfollowed = f"tool.uv.resolution is {short(which)}, which is not followed"
    sources: dict[str, list[Mapping[str, Any]]] = {
        canonicalize_name(name): [
            as_table(table, f"tool.uv.sources.{name}")
            for table in (entry if isinstance(entry, list) else [entry])
        ]
        for name, entry in as_table(uv.get("sources"), "tool.uv.sources").items()
    }
    for table in other_indices.tables(document, "tool", "pdm", "source"):
        for name in as_texts(table.get("include_packages"), "include_packages"):
            sources[canonicalize_name(name)] = [{"index": text_at(table, "name")}]
    where = "tool.uv.override-dependencies"
    overrides: dict[str, list[Requirement]] = {}
    for requirement in _requirements(uv, "override-dependencies"):
        overrides.setdefault(canonicalize_name(requirement.name), []).append(requirement)
    excluded = as_texts(uv.get("exclude-dependencies"), "tool.uv.exclude-dependencies")
    overrides.update((canonicalize_name(name), []) for name in excluded)
    for name, value in table_at(document, "tool", "pdm", "resolution", "overrides").items():
        overrides.setdefault(canonicalize_name(name), []).append(_pdm_override(name, value))
    left_out = {
        name: requirement_line(Requirement(name), Purpose.LEFT_OUT)
        for name, those in overrides.items()
        if not any(not one.marker or holds(one.marker) for one in those)
    }
    declared_names = set[str]()

    def replaced(line: Line, section: str) -> Iterator[Line]:
        requirement = line.requirement
        name = canonicalize_name(requirement.name) if requirement else ""
        if name in overrides:
            declared_names.add(name)
            yield from (
                [left_out[name]] if name in left_out else map(requirement_line, overrides[name])
            )
        elif requirement and (source := _source(name, section, sources.get(name, ()))):
            place = f"tool.uv.sources.{name}"
            in_workspace = f"file:{name}" if source.get("workspace") else ""
            if address := in_workspace or poetry.address_of(source, place):
                line = requirement_line(with_address(requirement, address))
            index = text_at(source, "index", f"{place}.index")
            yield from other_indices.from_index(line, index, content.indices)
        else:
            yield line

    for section in content.sections.values() if sources or overrides else ():
        section.lines = [
            new
            for line in section.lines
            for new in (replaced(line, section.name) if isinstance(line, Line) else [line])
        ]
    for name, those in overrides.items():
        if name in left_out and name not in declared_names:  # otherwise only where it is declared
            content.add("", where, [left_out[name]])
        elif name not in left_out:
            lines = [requirement_line(one, Purpose.OVERRIDE) for one in those if not one.url]
            content.add("", where, lines)
            if name not in declared_names:  # an address stays a requirement, as uv installs it
                content.add("", where, [requirement_line(one) for one in those if one.url])
    content.add(
        "",
        "tool.uv.constraint-dependencies",
        (
            requirement_line(one, Purpose.REQUIRED if one.url else Purpose.CONSTRAINT)
            for one in _requirements(uv, "constraint-dependencies")
        ),
    )


def _day(text: str) -> str:
    """The last day (ISO) that counts with ``exclude-newer``: a day, a time, or ``1 week`` ago."""
    try:
        if ago := re.fullmatch(r"P?T?(\d+) ?([HDW])\w*", text, re.IGNORECASE):
            hours = int(ago[1]) * {"h": 1, "d": 24, "w": 168}[ago[2].lower()]
            return str((datetime.now(timezone.utc) - timedelta(hours=hours)).date())
        if len(text) <= len("2024-01-31"):
            return text and str(date.fromisoformat(text))
        time = datetime.fromisoformat(text.replace("Z", "+00:00")) - timedelta(microseconds=1)
        return str(time.astimezone(timezone.utc).date())
    except (ValueError, OverflowError):
        raise ValueError(f"tool.uv.exclude-newer: '{short(text)}' is no day") from None


def _requirements(uv: Mapping[str, Any], name: str) -> Iterator[Requirement]:
    """The requirements in a list of uv's settings."""
    where = f"tool.uv.{name}"
    for text in as_texts(uv.get(name), where):
        line = parse_entry(text)
        if line.requirement is None:
            raise ValueError(f"{where}: '{short(text)}' is no requirement")
        yield line.requirement


def _pdm_override(name: str, value: Any) -> Requirement:
    """PDM's override: a version, a specifier or an address."""
    where = f"tool.pdm.resolution.overrides.{name}"
    text = as_text(value, where)
    try:
        is_address = re.match(r"[a-z+]+:", text)
        return Requirement(f"{name} @ {text}" if is_address else f"{name}{of_poetry(text)}")
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def with_address(requirement: Requirement, address: str) -> Requirement:
    """A requirement that comes from an address, and not from an index."""
    other = copy.copy(requirement)
    other.specifier, other.url = SpecifierSet(), address
    return other


def _source(
    name: str, section: str, sources: Iterable[Mapping[str, Any]]
) -> Mapping[str, Any] | None:
    """Where uv installs a package from; None if it is the usual index."""
    for source in sources:
        where = f"tool.uv.sources.{name}"
        choices = [
            as_text(source[kind], f"{where}.{kind}")
            for kind in ("extra", "group")
            if kind in source
        ]
        if choices and key(section) not in map(key, choices):
            continue
        marker = as_text(source.get("marker", ""), f"{where}.marker")
        if marker and not poetry.holds_at(marker, where):
            continue
        return source
    return None


def read_setup_cfg(config: ConfigParser, file: str) -> Content:
    content = Content()
    required = config.get("options", "install_requires", fallback="")
    content.add("", "install_requires", _setup_lines(required))
    if config.has_section("options.extras_require"):
        for name, value in config.items("options.extras_require"):
            content.add(name, f"extras_require.{name}", _setup_lines(value))
    name = config.get("metadata", "name", fallback="")
    own_extras(content, name, file, "extras_require")
    content.python = config.get("options", "python_requires", fallback="")
    return content


def _setup_lines(value: str) -> list[Line]:
    if value.strip().startswith("file:"):
        return [include_line(name.strip()) for name in value.strip()[5:].split(",")]
    parts = value.splitlines() if "\n" in value else value.split(";")  # as setuptools does
    texts = (re.sub(r"(^|\s)#.*", "", part).strip() for part in parts)
    return [parse_entry(text) for text in texts if text]
