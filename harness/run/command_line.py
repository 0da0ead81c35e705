"""Overrides -> RunConfig, composed by Hydra. The only module that imports Hydra.

Hydra parses the overrides and composes the groups of ``configs``. The parameters and pins come from
the scenario, so a new one needs no YAML. Keys and types are checked here, so a mistake is a line
with the choices.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import get_args, get_type_hints

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from harness.bugs import catalog
from harness.bugs.api.spec import RELEASED
from harness.releases import sources
from harness.run.run_config import ALL, AUTO, RunConfig, Schema, read
from harness.system.errors import UserError, unknown
from harness.system.files import ROOT

CONFIGS = str(ROOT / "configs")
GROUPS = {
    folder.name: sorted(file.stem for file in folder.glob("*.yaml"))
    for folder in sorted(Path(CONFIGS).iterdir())
    if folder.is_dir()
}
"""The options of each group of keys, but for ``scenario``."""
KINDS = {int: "a whole number", float: "a number", bool: "true or false"}
"""What may be written for a value, by its type."""
LISTS = ("variant", "patch")
"""Keys that take a list: one run has all of its values."""

ConfigStore.instance().store(name="schema", node=Schema)


def compose(words: Sequence[str]) -> RunConfig:
    """The RunConfig of the overrides of a single run."""
    config, scenario = composed(words)
    return read(config, scenario, list(map(understood, words)))


def compose_each(names: Iterable[str], words: Sequence[str]) -> list[RunConfig]:
    """The RunConfigs of several scenarios with the same overrides, each with its own defaults.

    Hydra composes only once, because that takes 0.1 s. Raises BrokenScenario.
    """
    names = list(names)
    if len(names) == 1:
        return [compose([f"scenario={names[0]}", *words])]
    config, _ = composed([f"scenario={ALL}", *words])
    overrides, configs = list(map(understood, words)), []
    for name in names:
        of_scenario = config.copy()
        _fill(of_scenario, name)
        configs.append(read(of_scenario, name, [f"scenario={name}", *overrides]))
    return configs


def selected(words: Sequence[str]) -> list[RunConfig]:
    """The RunConfigs of the overrides of ``run``: one, or one for each scenario of all or of a
    package that has the variant, and the pins."""
    scenario = _options(_parsed(words))["scenario"]
    names = catalog.names() if scenario == ALL else catalog.of_package(scenario)
    if not names:
        return [compose(words)]
    others = [word for word in words if not word.startswith("scenario=")]
    if pins := {word[5:].partition("=")[0] for word in others if word.startswith("pins.")}:
        names = [n for n in names if pins <= catalog.scenario(n).pins.keys()]
        if not names:
            pinned = " and ".join(sorted(pins))
            raise UserError(f"scenario={scenario}: none of these scenarios pins {pinned}")
        return [compose([f"scenario={name}", *others]) for name in names]
    variant = composed(words)[0].variant
    if isinstance(variant, str) and variant not in (ALL, RELEASED):  # a list must fit every one
        names = [n for n in names if variant in catalog.scenario(n).variants]
    if not names:
        raise UserError(f"no scenario has the variant {variant}")
    return compose_each(names, others)


def combinations(words: Sequence[str]) -> list[list[str]]:
    """The overrides of each run of a sweep: every combination of ``KEY=A,B``."""
    choices = [
        [f"{o.get_key_element()}={value}" for value in o.sweep_string_iterator()]
        if o.is_discrete_sweep()
        else [str(o.input_line)]
        for o in _parsed(words)
    ]
    return [list(combination) for combination in itertools.product(*choices)]


def composed(words: Sequence[str]) -> tuple[DictConfig, str]:
    """The configuration of overrides, and the scenario, or the scenarios, that they name.

    Raises UserError for a mistake that a type or a missing key shows, and BrokenScenario.
    """
    overrides = _parsed(words)
    options = _options(overrides)
    scenario = options.pop("scenario")
    groups = [f"{group}={option}" for group, option in options.items()]
    with hydra.initialize_config_dir(CONFIGS, version_base="1.3"):
        config = hydra.compose("config", overrides=groups)
    _fill(config, scenario)
    for override in overrides:
        if override.key_or_group not in ("scenario", *options):
            _apply(override, config)
    return config, scenario


def _fill(config: DictConfig, scenario: str) -> None:
    """Add the parameters and pins of a scenario; several have none in common."""
    bug = catalog.scenario(scenario) if scenario in catalog.names() else None
    config.scenario = OmegaConf.structured(bug.params) if bug else {}
    config.pins = dict.fromkeys(bug.pins if bug else (), AUTO)


def understood(word: str) -> str:
    """A word as Hydra is to read it.

    The value of a pin is quoted, because Hydra would read 0.10 as the number 0.1. Raises UserError
    for ``~KEY``, with which Hydra would remove a key that we read.
    """
    key, sign, value = word.partition("=")
    if key.startswith("~"):
        raise UserError(f"{key}: no key can be removed: write KEY=VALUE")
    if not key.lstrip("+").startswith("pins.") or not sign or value.startswith(("'", '"')):
        return word
    if sources.is_one(value):
        return f"{key}='{value}'"
    return key + sign + re.sub(r"(?<![\w.'\"])(\d+(?:\.\d+)?)(?![\w.'\"])", r"'\1'", value)


def _parsed(words: Sequence[str]) -> list[Override]:
    parser = OverridesParser.create()
    overrides = []
    for word in map(understood, words):
        key, sign, _ = word.partition("=")
        if not sign:
            example = word if word in catalog.names() else "bf16_clip"
            raise UserError(f"'{word}' is no KEY=VALUE; a scenario is named by scenario={example}")
        if key.startswith("hydra"):
            raise UserError(f"{key} has no effect here: on=slurm sends runs to Slurm")
        try:
            overrides += parser.parse_overrides([word])
        except HydraException:
            raise UserError(
                f"'{word}' cannot be read: write KEY=VALUE, or KEY=\"'VALUE'\""
            ) from None
    return overrides


def _options(overrides: Iterable[Override]) -> dict[str, str]:
    """The options that overrides choose, by group. Raises UserError for an unknown one, and for the
    values of a sweep where one is needed."""
    options = {}
    for override in overrides:
        if override.is_sweep_override():
            key, _, value = (word := str(override.input_line)).partition("=")
            if key in LISTS:
                raise UserError(f"{word}: write several values as a list: {key}=[{value}]")
            raise UserError(
                f"{word}: several values need --multirun, which runs them one after another"
            )
        group, option = override.key_or_group, override.get_value_element_as_str()
        if group == "scenario":
            if option not in (*catalog.names(), *catalog.subjects(), ALL):
                raise UserError(catalog.unknown_scenario(option, ALL))
        elif group not in GROUPS:
            continue
        elif option not in GROUPS[group]:
            raise UserError(unknown(group, option, GROUPS[group]))
        options[group] = option
    if "scenario" not in options:
        raise UserError(
            f"name a scenario: scenario=NAME, or scenario={ALL}. '{catalog.LIST}' shows them"
        )
    return options


def _apply(override: Override, config: DictConfig) -> None:
    """Set a key of the configuration. Raises UserError for an unknown key and for another type."""
    key, value = override.key_or_group, override.value()
    parent, _, name = key.rpartition(".")
    try:
        node = OmegaConf.select(config, parent) if parent else config
    except OmegaConfBaseException:
        node = None  # its parent is a value
    # An option of sbatch; nothing reads other keys that + could add.
    is_new = key.startswith("on.extra.") and (override.is_add() or override.is_force_add())
    if isinstance(node, DictConfig) and name in node.keys():  # noqa: SIM118 - not null ones either
        if isinstance(group := node[name], DictConfig) and not isinstance(value, dict):
            raise UserError(unknown("key", key, [f"{key}.{child!s}" for child in group]))
    elif not is_new:
        prefix, children = f"{parent}." if parent else "", []
        if isinstance(node, DictConfig):
            children = list(node)
        raise UserError(unknown("key", key, [f"{prefix}{child!s}" for child in children]))
    try:
        OmegaConf.update(config, key, value, merge=True, force_add=is_new)
        OmegaConf.select(config, key)  # resolves ${...}
    except (OmegaConfBaseException, ValueError):
        why, hint = "write another value", None
        if isinstance(node, DictConfig):
            hint = get_type_hints(OmegaConf.get_type(node)).get(name)
        if value is None:
            why = "null is no value, choose one or leave this out"
        elif kinds := [KINDS[kind] for kind in (hint, *get_args(hint)) if kind in KINDS]:
            why = f"write {kinds[0]}"
        raise UserError(f"{override.input_line}: {why}") from None


def as_yaml(words: Sequence[str]) -> str:
    """The configuration of overrides, as YAML."""
    return OmegaConf.to_yaml(composed(words)[0])


def description(words: Sequence[str]) -> str:
    """The keys with their values, and the parameters of the scenario; of any one if the overrides
    name none."""
    if not any(word.startswith("scenario=") for word in words):
        words = [f"scenario={catalog.sound()[0]}", *words]
    config, name = composed(words)
    options = [f"{group}: {', '.join(choices)}" for group, choices in GROUPS.items()]
    lines = [
        *("groups of keys, to choose as GROUP=OPTION:", "", *options),
        f"scenario: {ALL}, a package, or a name that '{catalog.LIST}' shows",
        *("", "keys, to set as KEY=VALUE or GROUP.KEY=VALUE:", "", OmegaConf.to_yaml(config)),
    ]
    if name in catalog.names():
        lines.append(f"The parameters of {name}:")
        knobs = catalog.scenario(name).knobs
        lines += [f"  scenario.{k}={knob.default}  {knob.meaning}" for k, knob in knobs.items()]
    return "\n".join(lines)
