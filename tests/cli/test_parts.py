"""Parts: all scenarios, each once, together with those that share its files, within the limit."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from harness.cli import _parts
from harness.system.errors import UserError

MB = 1_000_000


def _refuse(_: str, error: UserError) -> None:
    raise error


def _pack(scenarios: dict[str, dict[str, int]], ratio: float, packed: list[Sequence[str]]):  # type: ignore[no-untyped-def]
    def pack(part: Sequence[str]) -> int:
        packed.append(part)
        files = {digest: size for name in part for digest, size in scenarios[name].items()}
        return _parts.SITE_BYTES + int(sum(files.values()) * ratio)

    return pack


def _catalogue() -> dict[str, dict[str, int]]:
    """Eight scenarios: four with each of two large packages, each with a file of its own."""
    shared = [{"a": 100 * MB}, {"b": 90 * MB}]
    return {f"s{n}": shared[n % 2] | {f"own {n}": 10 * MB} for n in range(8)} | {"torch": {}}


@pytest.mark.parametrize("ratio", [0.1, 0.5])
def test_scenarios_that_share_files_come_into_one_part(ratio: float) -> None:
    scenarios, packed = _catalogue(), list[Sequence[str]]()
    limit = _parts.SITE_BYTES + int(145 * MB * ratio)
    parts = list(_parts.divide(scenarios, limit, _pack(scenarios, ratio, packed), _refuse))
    groups = sorted(sorted(name for name in part if name != "torch") for part in parts)
    assert groups == [["s0", "s2", "s4", "s6"], ["s1", "s3", "s5", "s7"]]
    assert sorted(name for part in parts for name in part) == sorted(scenarios)


def test_a_part_that_became_too_large_is_made_again_with_fewer_scenarios() -> None:
    scenarios, packed = _catalogue(), list[Sequence[str]]()
    limit = _parts.SITE_BYTES + 60 * MB
    parts = list(_parts.divide(scenarios, limit, _pack(scenarios, 0.5, packed), _refuse))
    assert len(packed) > len(parts), "the first estimate fits no release here"
    assert sorted(name for part in parts for name in part) == sorted(scenarios)


def test_a_scenario_that_is_too_large_alone_is_named_and_the_others_are_packed() -> None:
    scenarios, packed = _catalogue() | {"large": {"c": 900 * MB}}, list[Sequence[str]]()
    left_out: list[str] = []
    limit = _parts.SITE_BYTES + 60 * MB
    pack = _pack(scenarios, 0.5, packed)
    parts = list(_parts.divide(scenarios, limit, pack, lambda _, why: left_out.append(str(why))))
    assert left_out == ["large alone needs 455 MB: --parts must be larger"]
    assert sorted(name for part in parts for name in part) == sorted(_catalogue())
