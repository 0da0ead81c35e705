"""What run.json says of a trial because the catalogue does: its code, its question, its shape.

``run`` writes it down from here, and grading holds what it finds against the same: a run.json that
says something else was changed, or is of another catalogue, whose commit it names.
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
    FLAG,
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
        "launch": by_name(ANYTHING),
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
    """What the catalogue says of a trial: of ``run`` it needs ``params``, ``pins`` (those that the
    user has chosen), ``installed`` and ``lane``.

    Raises ValueError where these are none that the scenario takes.
    """
    told = catalog.scenario(scenario)
    params = {**run["params"], **told.variant(variant).params}
    catalog.load(scenario).Params(**params)
    chosen = _pins(told, variant, run)
    return {
        "about": told.about(variant),
        "expect": told.variant(variant).expect,
        "triggers": told.variant(variant).triggers,
        "ranks": told.ranks_of(variant),
        "launches": list(told.launches),
        "params": params,
        "pins": chosen,
        "modules": {name: pins.import_name(name) for name in chosen},
        "shims": [point.name for point in shims.needed(chosen, Lane(run["lane"]))],
        "defects": {d.name: edit(d) for d in told.variant(variant).defects},
        "watched": list(told.watched),
    }


@cache
def edit(defect: Defect) -> str:
    """A digest of what a defect edits, and how: not of comments or docstrings."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(defect.edit)))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    return digest([defect.upstream, defect.file, defect.scope, ast.unparse(tree)])


def _pins(told: Scenario, variant: str, run: Mapping[str, Any]) -> dict[str, str]:
    if run["installed"]:
        return dict(run["pins"])
    return pins.complete(told, {**run["pins"], **told.pins_of(variant)})


def check(run: Mapping[str, Any]) -> None:
    """Raise Inconclusive where run.json is not what this catalogue has such runs be."""
    wrong = SHAPE(run)
    if wrong:
        raise Inconclusive(f"run.json is not the record of a run: {wrong}")
    if run["scenario"] not in catalog.names():
        raise Inconclusive(f"this catalogue has no scenario '{run['scenario']}': {_origin(run)}")
    if not run["trials"]:
        raise Inconclusive("run.json names no trial")
    told = catalog.scenario(run["scenario"])
    if Lane(run["lane"]) not in told.lanes and not _refused(run):
        raise Inconclusive(f"run.json: {run['scenario']} does not run on the {run['lane']} lane")
    for variant, found in run["trials"].items():
        if variant != RELEASED and variant not in told.variants:
            raise Inconclusive(f"run.json: this catalogue has no {variant}: {_origin(run)}")
        _check_trial(run, variant, found)


def _refused(run: Mapping[str, Any]) -> bool:
    return all("unsupported" in found for found in run["trials"].values())


def _check_trial(run: Mapping[str, Any], variant: str, found: Mapping[str, Any]) -> None:
    wrong = (UNSUPPORTED if "unsupported" in found else LAUNCHED)(dict(found))
    if wrong:
        raise Inconclusive(f"run.json, {variant}: {wrong}")
    try:
        expected = json.loads(json.dumps(trial(run["scenario"], variant, run)))
    except (HarnessError, TypeError, ValueError) as error:
        why = f"run.json, {variant}: its parameters or pins are none of this catalogue ({error})"
        raise Inconclusive(f"{why}: {_origin(run)}") from None
    for name, value in expected.items():
        if name != "about" and found[name] != value:
            what = f"its {name}: {_short(found[name])}, where the catalogue has {_short(value)}"
            raise Inconclusive(f"run.json, {variant}: {what}; {_origin(run)}")
    if "overlay" in found and not _in_its_place(run, found["overlay"]):
        raise Inconclusive(f"run.json, {variant}: its overlay is not where it belongs")
    if "overlay" in found and found["overlay"]["key"] != INSTALLED:
        _check_lock(variant, found["overlay"]["lock"], found["pins"])
    files = set(found.get("files", expected["watched"]))
    if not files <= set(expected["watched"]) or (
        variant != RELEASED and files != set(expected["watched"])
    ):
        raise Inconclusive(f"run.json, {variant}: not the files with the bug; {_origin(run)}")


def _in_its_place(run: Mapping[str, Any], lent: Mapping[str, Any]) -> bool:
    """An overlay lies in a folder of its key; what is installed has none."""
    if run["installed"]:
        return bool(lent["key"] == INSTALLED)
    return Path(lent["site"]).parts[-2:] == (lent["key"], SITE)


def _check_lock(variant: str, lock: Sequence[str], pinned: Mapping[str, str]) -> None:
    """The lock that the overlay was installed from names each pinned package once, as pinned."""
    named: dict[str, list[str]] = {}
    for name, version in locks.entries("\n".join(lock)):
        named.setdefault(name, []).append(version)
    for name, version in pinned.items():
        found = named.get(canonicalize_name(name), [])
        if found != [version]:
            has = f"{name} {', '.join(found)}" if found else f"no {name}"
            raise Inconclusive(f"run.json, {variant}: its lock has {has}, and its pins {version}")


def _short(value: Any, most: int = 60) -> str:
    text = json.dumps(value)
    return text if len(text) <= most else f"{text[:most]}..."


def _origin(run: Mapping[str, Any]) -> str:
    """Whether run.json is of another catalogue, by the commit that it names."""
    theirs, ours = run["source"]["commit"], machine.source()
    if theirs is None:
        return "it names no commit"
    if theirs == ours["commit"] and not (run["source"]["dirty"] or ours["dirty"]):
        return "it was changed since it was written"
    return f"it is of another catalogue, that of commit {theirs[:12]}, or was changed"


def place(run: Mapping[str, Any], variant: str, launch: str, rank: int) -> Position:
    """Where a rank of a launch stands, by run.json."""
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
    """The scenario's ``Params`` of a trial, by run.json."""
    return catalog.load(run["scenario"]).Params(**run["trials"][variant]["params"])
