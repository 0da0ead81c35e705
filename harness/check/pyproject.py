"""Read the tables of pyproject.toml and Pipfile that declare dependencies.

The standard's tables are read, and those of Poetry, PDM, uv, Rye, Hatch, Flit and setuptools.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from harness.check import constraints
from harness.check.markers import holds
from harness.check.sections import Constraint, Content, Option, Override, Part, key
from harness.check.unread import PIXI
from harness.system.documents import as_list, as_table, as_text, as_texts, table_at
from harness.system.text import short

GROUPS, EXTRAS = "dependency-groups", "project.optional-dependencies"
POETRY_GROUPS, POETRY_EXTRAS = "tool.poetry.group", "tool.poetry.extras"
DYNAMIC = "tool.setuptools.dynamic"

MARKERS = (
    *("os_name", "sys_platform", "platform_machine", "platform_python_implementation"),
    *("platform_release", "platform_system", "platform_version", "python_version"),
    *("python_full_version", "implementation_name", "implementation_version"),
)
"""Names that a Pipfile has for markers: ``sys_platform = "== 'linux'"``."""

NEVER = "python_version < '3'"
"""A marker that holds nowhere."""


def read(document: Mapping[str, Any], file: str) -> Content:
    """Read what a pyproject.toml declares. Raises ValueError, with the place, for an invalid
    entry."""
    content, project = Content(), table_at(document, "project")
    dependencies = as_texts(project.get("dependencies"), "project.dependencies")
    content.add("", "project.dependencies", dependencies)
    for name, lines in table_at(document, *EXTRAS.split(".")).items():
        content.add(name, f"{EXTRAS}.{name}", as_texts(lines, f"{EXTRAS}.{name}"))
    _setuptools(document, content, file)
    _groups(document, content)
    _poetry(document, content, file)
    _other_tools(document, content, file)
    for kind in (GROUPS, POETRY_GROUPS):
        content.refuse_circles(kind)
    names = [
        as_text(table["name"], f"{where}.name")
        for where, table in (
            ("project", project),
            ("tool.poetry", table_at(document, "tool", "poetry")),
        )
        if "name" in table
    ]
    own_extras(content, next(iter(names), ""), file, EXTRAS, POETRY_EXTRAS)
    _uv(document, content)
    if python := project.get("requires-python"):
        content.python = as_text(python, "project.requires-python")
    return content


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


def _included(dynamic: Mapping[str, Any], name: str, above: str) -> Iterator[str]:
    """The lines for files with requirements."""
    where = f"{above}.{name}.file"
    files = as_table(dynamic[name], f"{above}.{name}").get("file")
    for file in [files] if isinstance(files, str) else as_texts(files, where):
        yield Option(f"-r {file}")


def _groups(document: Mapping[str, Any], content: Content) -> None:
    groups = table_at(document, GROUPS)
    for name in groups:
        content.add(name, f"{GROUPS}.{name}", ())
    parts = content.parts(GROUPS)
    for name, entries in groups.items():
        where = f"{GROUPS}.{name}"
        for entry in as_list(entries, where):
            if isinstance(entry, str):
                content.add(name, where, [entry])
            else:
                group = as_table(entry, f"an entry of {where}").get("include-group")
                text = as_text(group, f"include-group of {where}")
                content.add(name, where, _included_group(parts, text, where))


def _included_group(parts: Mapping[str, list[Part]], name: str, where: str) -> list[Part]:
    """The groups of this name, which another one includes."""
    if key(name) not in parts:
        raise ValueError(f"{where} includes the group '{short(name)}', which is not there")
    return parts[key(name)]


def _poetry(document: Mapping[str, Any], content: Content, file: str) -> None:
    """Read Poetry's own tables. An optional package belongs to the extras that name it."""
    poetry = table_at(document, "tool", "poetry")
    where = "tool.poetry.dependencies"
    extras = {
        extra: as_texts(names, f"{POETRY_EXTRAS}.{extra}")
        for extra, names in as_table(poetry.get("extras"), POETRY_EXTRAS).items()
    }
    extras_of: dict[str, list[str]] = {}
    for extra, names in extras.items():
        content.add(extra, f"{POETRY_EXTRAS}.{extra}", ())
        for name in names:
            extras_of.setdefault(key(name), []).append(extra)
    for name, entry in as_table(poetry.get("dependencies"), where).items():
        if name == "python":
            content.python = _specifier(as_text(entry, f"{where}.python"), f"{where}.python")
            continue
        for line, optional in _entry(name, entry, where, content, file):
            for extra in extras_of.get(key(name), ()) if optional else ():
                content.add(extra, f"{POETRY_EXTRAS}.{extra}", [line])
            if not optional:
                content.add("", where, [line])
    groups = as_table(poetry.get("group"), POETRY_GROUPS)
    for group, table in groups.items():
        _poetry_group(group, as_table(table, f"{POETRY_GROUPS}.{group}"), content, file)
    parts = content.parts(POETRY_GROUPS)
    for group, table in groups.items():
        where = f"{POETRY_GROUPS}.{group}"
        for name in as_texts(table.get("include-groups"), f"{where}.include-groups"):
            content.add(group, where, _included_group(parts, name, where))
    old_group = {"dependencies": poetry.get("dev-dependencies")}
    if old_group["dependencies"]:
        _poetry_group("dev", old_group, content, file)


def _poetry_group(group: str, table: Mapping[str, Any], content: Content, file: str) -> None:
    where = f"{POETRY_GROUPS}.{group}"
    content.add(group, where, ())
    for name, entry in as_table(table.get("dependencies"), f"{where}.dependencies").items():
        lines = [line for line, _ in _entry(name, entry, where, content, file)]
        content.add(group, where, lines)


def _entry(
    name: str, entry: Any, where: str, content: Content, file: str
) -> Iterator[tuple[str, bool]]:
    """The lines for an entry of Poetry or of a Pipfile, and whether only an extra installs it."""
    where = f"{where}.{name}"
    for choice in entry if isinstance(entry, list) else [entry]:
        table = {"version": choice} if isinstance(choice, str) else as_table(choice, where)
        extras = ",".join(as_texts(table.get("extras"), f"{where}.extras"))
        package = f"{name}[{extras}]" if extras else name
        address = _address(table, where)
        if address:
            line = f"{package} @ {address}"
        else:
            version = as_text(table.get("version", "*"), f"{where}.version")
            line = f"{package}{_specifier(version, where, content.notes, file)}"
        marker = _marker(table, where)
        yield f"{line} ; {marker}" if marker else line, bool(table.get("optional"))


def _specifier(version: str, where: str, notes: list[str] | None = None, file: str = "") -> str:
    try:
        specifier, has_alternatives = constraints.of_poetry(version)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    if has_alternatives and notes is not None:
        notes.append(f"{file}, {where}: which of the alternatives '{short(version)}' is left open")
    return specifier


def _address(table: Mapping[str, Any], where: str) -> str:
    """The address of a package that does not come from an index; empty otherwise.

    A path is an address too: its folder does not show which package is there, but the entry does.
    """
    for name in ("git", "url", "path", "file"):
        if name in table:
            text = as_text(table[name], f"{where}.{name}")
            place = quote(text, safe="/:@+.~%=&?#-_")
            if name == "git":  # git@host:path, as ssh has it
                place = re.sub(r"^([\w.-]+@[\w.-]+):(?!/)", r"ssh://\1/", place)
            if name == "git":
                return f"{'' if place.startswith('git+') else 'git+'}{place}{_tag(table, where)}"
            return place if re.match(r"[a-z+]+:", place) else f"file:{place}"
    return ""


def _tag(table: Mapping[str, Any], where: str) -> str:
    """The tag or commit of a repository as an address has it: ``@v4.45.0``."""
    for name in ("tag", "rev", "ref"):
        if name in table:
            return f"@{quote(as_text(table[name], f'{where}.{name}'), safe='/.+-_')}"
    return ""


def _marker(table: Mapping[str, Any], where: str) -> str:
    """Combine the markers of an entry, under all names that Poetry and Pipenv use, into one."""
    markers = [as_text(table["markers"], f"{where}.markers")] if "markers" in table else []
    kinds = {"python": constraints.python_marker, "platform": constraints.platform_marker}
    for name, as_marker in kinds.items():
        if name in table:
            text = as_text(table[name], f"{where}.{name}")
            try:
                markers.append(as_marker(text))
            except ValueError as error:
                raise ValueError(f"{where}.{name}: {error}") from None
    markers += [f"{n} {as_text(table[n], f'{where}.{n}')}" for n in MARKERS if n in table]
    for marker in filter(None, markers):
        _holds(marker, where)
    return constraints.all_of(markers)


def _other_tools(document: Mapping[str, Any], content: Content, file: str) -> None:
    """The groups of other tools, which the project's own users name: ``dev``, ``train``."""
    for tool in ("uv", "rye"):
        where = f"tool.{tool}.dev-dependencies"
        lines = as_texts(table_at(document, "tool", tool).get("dev-dependencies"), where)
        if lines:
            content.add("dev", where, lines)
    for name, lines in table_at(document, "tool", "pdm", "dev-dependencies").items():
        where = f"tool.pdm.dev-dependencies.{name}"
        texts = as_texts(lines, where)
        content.add(name, where, [Option(t) if t.startswith("-e ") else t for t in texts])
    for name, table in table_at(document, "tool", "hatch", "envs").items():
        where = f"tool.hatch.envs.{name}"
        for part in ("dependencies", "extra-dependencies"):
            lines = as_texts(as_table(table, where).get(part), f"{where}.{part}")
            if lines:
                content.add(name, where, lines)
    flit = table_at(document, "tool", "flit", "metadata")
    content.add(
        "", "tool.flit.metadata", as_texts(flit.get("requires"), "tool.flit.metadata.requires")
    )
    where = "tool.flit.metadata.requires-extra"
    for name, lines in as_table(flit.get("requires-extra"), where).items():
        content.add(name, f"{where}.{name}", as_texts(lines, f"{where}.{name}"))
    if table_at(document, "tool", "pixi"):
        content.notes.append(f"{file}: the tables of tool.pixi are not read: {PIXI}")


def own_extras(content: Content, project: str, file: str, *kinds: str) -> None:
    """Replace requirements of the project itself, ``ours[train]``, by its extras of some kinds."""
    if not project:
        return
    extras = content.parts(*kinds)
    for section in content.sections.values():
        lines: list[str] = []
        for line in section.lines:
            entry = _requirement(line) if "[" in line else None
            if entry is None or canonicalize_name(entry.name) != canonicalize_name(project):
                lines.append(line)
                continue
            if entry.marker and not holds(entry.marker):
                continue
            for extra in sorted(entry.extras):
                lines += extras.get(key(extra), ())
                if key(extra) not in extras:
                    content.notes.append(f"{file}, {section.where}: it has no extra {extra}")
        section.lines = lines


def _requirement(line: str) -> Requirement | None:
    """Parse a requirement; None for any other line: ``requirements`` refuses invalid ones."""
    if isinstance(line, (Part, Option)):
        return None
    try:
        return Requirement(line)
    except (InvalidRequirement, RecursionError):
        return None


def _uv(document: Mapping[str, Any], content: Content) -> None:
    """Apply the overrides and sources of uv, and the overrides of PDM."""
    uv = table_at(document, "tool", "uv")
    sources: dict[str, list[Mapping[str, Any]]] = {
        canonicalize_name(name): _tables(entry, f"tool.uv.sources.{name}")
        for name, entry in as_table(uv.get("sources"), "tool.uv.sources").items()
    }
    where = "tool.uv.override-dependencies"
    overrides: dict[str, list[str]] = {}
    for line in as_texts(uv.get("override-dependencies"), where):
        if (requirement := _requirement(line)) is None:
            raise ValueError(f"{where}: '{short(line)}' is no requirement")
        overrides.setdefault(canonicalize_name(requirement.name), []).append(line)
    excluded = as_texts(uv.get("exclude-dependencies"), "tool.uv.exclude-dependencies")
    overrides.update((canonicalize_name(name), []) for name in excluded)
    _pdm_overrides(document, overrides)
    left_out = {name for name, lines in overrides.items() if not any(map(_applies, lines))}
    overrides.update((name, [Override(f"{name} ; {NEVER}")]) for name in left_out)
    declared: set[str] = set()
    for section in content.sections.values() if sources or overrides else ():
        section.lines = list(_replaced(section.lines, section.name, overrides, sources, declared))
    for name, lines in overrides.items():
        if name in left_out & declared:
            continue  # in a group, which may not be chosen
        addresses = [line for line in lines if _has_address(line)]
        content.add("", where, [Override(line) for line in lines if line not in addresses])
        if name not in declared:  # an address stays a requirement, as uv installs it
            content.add("", where, addresses)
    where = "tool.uv.constraint-dependencies"
    lines = as_texts(uv.get("constraint-dependencies"), where)
    content.add("", where, [line if _has_address(line) else Constraint(line) for line in lines])


def _has_address(line: str) -> bool:
    """Whether a requirement names a file or an address: ``a @ file:///b``, ``a@file:///b``."""
    requirement = _requirement(line)
    return requirement is None or requirement.url is not None


def _applies(line: str) -> bool:
    """Whether a requirement is for this platform and Python."""
    marker = Requirement(line).marker
    return not marker or holds(marker)


def _pdm_overrides(document: Mapping[str, Any], overrides: dict[str, list[str]]) -> None:
    """Add PDM's overrides: each is a version, a specifier or an address."""
    where = "tool.pdm.resolution.overrides"
    for name, value in table_at(document, *where.split(".")).items():
        text = as_text(value, f"{where}.{name}")
        address = re.match(r"[a-z+]+:", text)
        line = f"{name} @ {text}" if address else f"{name}{_specifier(text, f'{where}.{name}')}"
        overrides.setdefault(canonicalize_name(name), []).append(line)


def _tables(value: Any, where: str) -> list[Mapping[str, Any]]:
    return [as_table(table, where) for table in (value if isinstance(value, list) else [value])]


def _replaced(
    lines: Iterable[str],
    section: str,
    overrides: Mapping[str, list[str]],
    sources: Mapping[str, list[Mapping[str, Any]]],
    declared: set[str],
) -> Iterator[str]:
    """Replace each line of a section for which uv has an override or a source."""
    for line in lines:
        requirement = _requirement(line)
        name = canonicalize_name(requirement.name) if requirement else ""
        if requirement and name in overrides:
            declared.add(name)
            yield from overrides[name]
        elif requirement and (address := _source(name, section, sources.get(name, ()))):
            marker = f" ; {requirement.marker}" if requirement.marker else ""
            yield f"{requirement.name} @ {address}{marker}"
        else:
            yield line


def _source(name: str, section: str, sources: Iterable[Mapping[str, Any]]) -> str:
    """The address from which uv installs a package; empty if it comes from an index."""
    for source in sources:
        where = f"tool.uv.sources.{name}"
        choices = [
            as_text(source[kind], f"{where}.{kind}")
            for kind in ("extra", "group")
            if kind in source
        ]
        if choices and key(section) not in map(key, choices):
            continue
        if "marker" in source and not _holds(as_text(source["marker"], f"{where}.marker"), where):
            continue
        return f"file:{name}" if source.get("workspace") else _address(source, where)
    return ""


def _holds(marker: str, where: str) -> bool:
    try:
        return holds(marker)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


NO_GROUPS = ("source", "requires", "scripts", "pipenv", "pipfile")
"""Tables of a Pipfile that have no packages."""


def read_pipfile(document: Mapping[str, Any], file: str) -> Content:
    """What a Pipfile declares; each further table with packages is a group."""
    content = Content()
    content.add("", "packages", ())
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
