"""What run.json contains of each trial, and what a reader gets from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness import catalog
from harness.api.spec import RELEASED, Lane, Position, Scenario
from harness.overlays import shims
from harness.system.errors import Inconclusive
from harness.upstream import pins


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
        "defects": [defect.name for defect in of_variant.defects],
    }


def _pins(scenario: Scenario, variant: str, run: Mapping[str, Any]) -> dict[str, str]:
    if run["installed"]:
        return dict(run["pins"])
    return pins.complete(scenario, {**run["pins"], **scenario.pins_of(variant)})


def check(run: Mapping[str, Any]) -> None:
    """Raise Inconclusive if this catalogue cannot judge a run with this run.json."""
    if run["scenario"] not in catalog.names():
        raise Inconclusive(f"this catalogue has no scenario '{run['scenario']}': {_origin(run)}")
    known = {RELEASED, *catalog.scenario(run["scenario"]).variants}
    for variant in run["trials"]:
        if variant not in known:
            raise Inconclusive(
                f"run.json: this catalogue has no variant '{variant}': {_origin(run)}"
            )
        try:
            params(run, variant)
        except (TypeError, ValueError) as error:
            why = f"this catalogue does not accept its parameters ({error})"
            raise Inconclusive(f"run.json, {variant}: {why}: {_origin(run)}") from None


def _origin(run: Mapping[str, Any]) -> str:
    """The commit of the catalogue that a run is from."""
    commit = run["source"]["commit"]
    return f"it is from the catalogue of commit {commit[:12]}" if commit else "it names no commit"


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
