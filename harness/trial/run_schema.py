"""What run.json contains: its shape, and for each trial what follows from the catalogue.

``run`` writes a trial from here, and grading compares run.json with the same. A run.json that
differs was changed, or is from another catalogue, whose commit it names.
"""

from __future__ import annotations

import ast
import inspect
import json
import textwrap
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from harness import catalog, machine
from harness.errors import HarnessError, Inconclusive
from harness.facts.shapes import (
    ANYTHING,
    COUNT,
    FLAG,
    SIZE,
    TEXT,
    WHOLE,
    by_name,
    held,
    many,
    maybe,
    one_of,
    optional,
)
from harness.spec import RELEASED, Defect, Lane, Position, Scenario
from harness.trial.records import digest
from harness.upstream import locks, pins, shims
from harness.upstream.overlay import INSTALLED, SITE

LAUNCH = held(
    {
        "lane": TEXT,
        "timeout": SIZE,
        "threads": COUNT,
        "warm": FLAG,
        "nodes": optional(COUNT),  # before there was this setting: one
    }
)
SHAPE = held(
    {
        "format": WHOLE,
        "run": TEXT,
        "scenario": TEXT,
        "command": TEXT,
        "started": TEXT,
        "lane": one_of(*(lane.value for lane in Lane)),
        "seed": WHOLE,
        "params": by_name(ANYTHING),
        "pins": by_name(TEXT),
        "installed": FLAG,
        "launch": LAUNCH,
        "machine": by_name(ANYTHING),
        "environment": by_name(TEXT),
        "trials": by_name(by_name(ANYTHING)),
        "source": held({"commit": maybe(TEXT), "dirty": maybe(FLAG), "unknown": optional(TEXT)}),
    }
)
TRIAL = {
    "about": TEXT,
    "expect": maybe(TEXT),
    "triggers": FLAG,
    "ranks": WHOLE,
    "launches": many(TEXT),
    "params": by_name(ANYTHING),
    "pins": by_name(TEXT),
    "date": TEXT,
    "shims": many(TEXT),
    "modules": by_name(TEXT),
    "defects": by_name(TEXT),
    "watched": many(TEXT),
}
UNSUPPORTED = held({**TRIAL, "unsupported": TEXT})
LAUNCHED = held(
    {
        **TRIAL,
        "files": by_name(TEXT),
        "overlay": held(
            {"key": TEXT, "site": TEXT, "made": FLAG, "lock": many(TEXT), "diff": many(TEXT)}
        ),
    }
)


def trial(scenario: str, variant: str, run: Mapping[str, Any]) -> dict[str, Any]:
    """What follows for a trial from the catalogue, and from these keys of ``run``: ``params``,
    ``pins`` (those that the user has chosen), ``installed`` and ``lane``.

    Raises ValueError if the scenario does not accept the parameters or pins.
    """
    spec = catalog.scenario(scenario)
    of_variant = spec.variant(variant)
    params = {**run["params"], **of_variant.params}
    catalog.load(scenario).Params(**params)
    chosen = _pins(spec, variant, run)
    return {
        "about": spec.about(variant),
        "expect": of_variant.expect,
        "triggers": of_variant.triggers,
        "ranks": spec.ranks_of(variant),
        "launches": list(spec.launches),
        "params": params,
        "pins": chosen,
        "modules": {name: pins.import_name(name) for name in chosen},
        "shims": [point.name for point in shims.needed(chosen, Lane(run["lane"]))],
        "defects": {d.name: edit(d) for d in of_variant.defects},
        "watched": list(spec.watched),
    }


@cache
def edit(defect: Defect) -> str:
    """A digest of a defect's edit, without its comments and docstrings."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(defect.edit)))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    return digest([defect.upstream, defect.file, defect.scope, ast.unparse(tree)])


def _pins(scenario: Scenario, variant: str, run: Mapping[str, Any]) -> dict[str, str]:
    if run["installed"]:
        return dict(run["pins"])
    return pins.complete(scenario, {**run["pins"], **scenario.pins_of(variant)})


def check(run: Mapping[str, Any]) -> None:
    """Raise Inconclusive if this catalogue would not have written this run.json."""
    wrong = SHAPE(run)
    if wrong:
        raise Inconclusive(f"run.json is not the record of a run: {wrong}")
    if run["scenario"] not in catalog.names():
        raise Inconclusive(f"this catalogue has no scenario '{run['scenario']}': {_origin(run)}")
    if not run["trials"]:
        raise Inconclusive("run.json has no trial")
    scenario = catalog.scenario(run["scenario"])
    if Lane(run["lane"]) not in scenario.lanes and not _refused(run):
        raise Inconclusive(f"run.json: {run['scenario']} does not run on the {run['lane']} lane")
    for variant, content in run["trials"].items():
        if variant != RELEASED and variant not in scenario.variants:
            raise Inconclusive(
                f"run.json: this catalogue has no variant '{variant}': {_origin(run)}"
            )
        _check_trial(run, variant, content)


def _refused(run: Mapping[str, Any]) -> bool:
    return all("unsupported" in content for content in run["trials"].values())


def _check_trial(run: Mapping[str, Any], variant: str, content: Mapping[str, Any]) -> None:
    wrong = (UNSUPPORTED if "unsupported" in content else LAUNCHED)(dict(content))
    if wrong:
        raise Inconclusive(f"run.json, {variant}: {wrong}")
    try:
        expected = json.loads(json.dumps(trial(run["scenario"], variant, run)))
    except (HarnessError, TypeError, ValueError) as error:
        why = f"this catalogue does not accept its parameters or pins ({error})"
        raise Inconclusive(f"run.json, {variant}: {why}: {_origin(run)}") from None
    for name, value in expected.items():
        if name != "about" and content[name] != value:
            what = f"its {name}: {_short(content[name])}, where the catalogue has {_short(value)}"
            raise Inconclusive(f"run.json, {variant}: {what}; {_origin(run)}")
    if "overlay" in content:
        _check_overlay(run, variant, content)
    files, watched = set(content.get("files", expected["watched"])), set(expected["watched"])
    if not files <= watched or (variant != RELEASED and files != watched):
        raise Inconclusive(f"run.json, {variant}: not the files with the bug; {_origin(run)}")


def _check_overlay(run: Mapping[str, Any], variant: str, content: Mapping[str, Any]) -> None:
    """The overlay is in the folder that its key names, and its lock file fits the pins."""
    overlay = content["overlay"]
    in_its_folder = Path(overlay["site"]).parts[-2:] == (overlay["key"], SITE)
    if not (overlay["key"] == INSTALLED if run["installed"] else in_its_folder):
        raise Inconclusive(f"run.json, {variant}: its overlay is not in the folder of its key")
    if overlay["key"] != INSTALLED:
        _check_lock(variant, overlay["lock"], content["pins"])


def _check_lock(variant: str, lock: Sequence[str], pinned: Mapping[str, str]) -> None:
    """The overlay's lock file contains each pinned package once, as pinned."""
    locked: dict[str, list[str]] = {}
    for name, version in locks.entries("\n".join(lock)):
        locked.setdefault(name, []).append(version)
    for name, version in pinned.items():
        versions = locked.get(canonicalize_name(name), [])
        if versions != [version]:
            has = f"{name} {', '.join(versions)}" if versions else f"no {name}"
            raise Inconclusive(f"run.json, {variant}: its lock has {has}, and its pins {version}")


def _short(value: Any, most: int = 60) -> str:
    text = json.dumps(value)
    return text if len(text) <= most else f"{text[:most]}..."


def _origin(run: Mapping[str, Any]) -> str:
    """Whether run.json is from another catalogue, judged by the commit that it names."""
    theirs, ours = run["source"]["commit"], machine.source()
    if theirs is None:
        return "it names no commit"
    if theirs == ours["commit"] and not (run["source"]["dirty"] or ours["dirty"]):
        return "it was changed since it was written"
    return f"it is from another catalogue, that of commit {theirs[:12]}, or was changed"


def position(run: Mapping[str, Any], variant: str, launch: str, rank: int) -> Position:
    """The position of a rank of a launch."""
    trial = run["trials"][variant]
    return Position(
        params(run, variant),
        run["seed"],
        rank,
        trial["ranks"],
        Lane(run["lane"]),
        trial["pins"],
        launch,
    )


def params(run: Mapping[str, Any], variant: str) -> Any:
    """The scenario's ``Params`` for a trial."""
    return catalog.load(run["scenario"]).Params(**run["trials"][variant]["params"])
