"""Overrides -> RunConfig, composed by Hydra. The only module that imports Hydra.

Each scenario's ``Params`` is registered as an option of the group ``scenario``, so a new scenario
needs no YAML. Hydra parses the overrides and composes the groups. Keys and types are checked here,
so a mistake is a line with the choices.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from harness.bugs import catalog
from harness.bugs.api.spec import RELEASED, Scenario
from harness.releases import sources
from harness.run.run_config import ALL, AUTO, RunConfig, Schema, read, refuse_extras
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


def compose(words: Sequence[str]) -> RunConfig:
    """The RunConfig of the overrides of a single run."""
    config, scenario = composed(words)
    return read(config, scenario, list(map(understood, words)))


def compose_each(names: Iterable[str], words: Sequence[str]) -> list[RunConfig]:
    """The RunConfigs of several scenarios with the same overrides; broken scenarios come last.

    Hydra composes only once, because that takes 0.1 s.
    """
    names, lost = list(names), catalog.broken()
    sound = [name for name in names if name not in lost]
    if not sound:
        catalog.load(names[0])  # raises BrokenScenario
    if len(sound) == 1:
        configs = [compose([f"scenario={sound[0]}", *words])]
    else:
        configs = _several(sound, composed([f"scenario={ALL}", *words])[0], words)
    return [*configs, *(_unread(configs[0], name) for name in names if name in lost)]


def selected(words: Sequence[str]) -> list[RunConfig]:
    """The RunConfigs of the overrides of ``run``: one, or one for each scenario of all or of a
    package."""
    config, scenario = composed(words)
    of_package = catalog.of_package(scenario)
    if scenario != ALL and not of_package:
        return [read(config, scenario, list(map(understood, words)))]
    variant, names = config.variant, of_package or catalog.sound()
    fitting = [n for n in names if _has_variant(catalog.scenario(n), variant)]
    if not fitting:
        raise UserError(f"no scenario has the variant {variant}")
    chosen = _several(fitting, config, words)
    broken = () if of_package else catalog.broken()
    return [*chosen, *(_unread(chosen[0], name) for name in broken)]


def _several(names: Iterable[str], config: DictConfig, words: Sequence[str]) -> list[RunConfig]:
    """The RunConfigs of several scenarios, each with its own defaults."""
    refuse_extras(config, (), ())
    others = [understood(word) for word in words if not word.startswith("scenario=")]
    configs = []
    for name in names:
        copy = config.copy()
        OmegaConf.set_struct(copy, False)
        copy.scenario = OmegaConf.structured(catalog.scenario(name).params)
        configs.append(read(copy, name, [f"scenario={name}", *others]))
    return configs


def _unread(config: RunConfig, name: str) -> RunConfig:
    """A RunConfig for a broken scenario among others: running it fails with the reason."""
    return replace(config, scenario=name, params=None, pins={})


def _has_variant(scenario: Scenario, variant: Any) -> bool:
    """Whether a scenario has the variant that was chosen for all; a list must fit every
    scenario."""
    return not isinstance(variant, str) or variant in (ALL, RELEASED, *scenario.variants)


def combinations(words: Sequence[str]) -> list[list[str]]:
    """The overrides of each run of a sweep: every combination of ``KEY=A,B``."""
    _register()
    with hydra.initialize_config_dir(CONFIGS, version_base="1.3"):
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
    _register()
    with hydra.initialize_config_dir(CONFIGS, version_base="1.3"):
        overrides = _parsed(words)
        for override in overrides:
            _refuse_several(override)
        options = _options(overrides)
        scenario, preset = options["scenario"], options.get("preset", "null")
        if scenario in catalog.names():
            _register_params(scenario, catalog.scenario(scenario))
        if preset != "null":
            knobs = catalog.scenario(scenario).knobs if scenario in catalog.names() else {}
            _refuse_other_preset(preset, knobs)
        groups = [f"{g}={option}" for g, option in options.items() if option != "null"]
        config = hydra.compose("config", overrides=groups)
    for override in overrides:
        if override.key_or_group not in options:
            _apply(override, config)
    return config, scenario


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
    parser = OverridesParser.create(GlobalHydra.instance().config_loader())
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


def _refuse_several(override: Override) -> None:
    """Raise UserError for the values of a sweep where one is needed."""
    if override.is_sweep_override():
        key, _, value = str(override.input_line).partition("=")
        if key in LISTS:
            raise UserError(f"{key}={value}: write several values as a list: {key}=[{value}]")
        raise UserError(
            f"{key}={value}: several values need --multirun, which runs them one after another"
        )


def _options(overrides: Iterable[Override]) -> dict[str, str]:
    """The options that overrides choose, by group. Raises UserError for an unknown one."""
    options = {}
    for override in overrides:
        group, option = override.key_or_group, override.get_value_element_as_str()
        if group == "scenario":
            if option not in _selections():
                raise UserError(catalog.unknown_scenario(option, ALL))
        elif group not in GROUPS:
            continue
        elif option not in GROUPS[group] and (group, option) != ("preset", "null"):
            raise UserError(unknown(group, option, GROUPS[group]))
        options[group] = option
    if "scenario" not in options:
        raise UserError(
            f"name a scenario: scenario=NAME, or scenario={ALL}. '{catalog.LIST}' shows them"
        )
    return options


def _selections() -> tuple[str, ...]:
    """What ``scenario=`` may be."""
    return (*catalog.names(), *catalog.subjects(), ALL)


def _refuse_other_preset(preset: str, knobs: Iterable[str]) -> None:
    """Raise UserError for a preset with parameters that a scenario does not have."""
    for name in OmegaConf.load(Path(CONFIGS, "preset", f"{preset}.yaml")).scenario:
        if name not in knobs:
            raise UserError(
                f"preset={preset} is for another scenario: this one has no scenario.{name}"
            )


def _apply(override: Override, config: DictConfig) -> None:
    """Set a key of the configuration. Raises UserError for an unknown key and for another type."""
    key, value = override.key_or_group, override.value()
    parent, _, name = key.rpartition(".")
    try:
        node = OmegaConf.select(config, parent) if parent else config
    except OmegaConfBaseException:
        node = None  # its parent is a value
    is_new = override.is_add() or override.is_force_add()
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


def _register() -> None:
    """Register the scenarios with Hydra, by name alone, as it copies its store often."""
    store = ConfigStore.instance()
    store.store(name="schema", node=Schema)
    for name in _selections():
        node: dict[str, Any] = {"scenario": {}, "pins": {}}
        store.store(group="scenario", name=name, node=node, package="_global_")


def _register_params(name: str, bug: Scenario) -> None:
    node = {"scenario": OmegaConf.structured(bug.params), "pins": dict.fromkeys(bug.pins, AUTO)}
    ConfigStore.instance().store(group="scenario", name=name, node=node, package="_global_")


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
