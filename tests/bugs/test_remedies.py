"""The release that an affected user is advised to use."""

from __future__ import annotations

import re

import pytest
from packaging.version import Version

from harness.bugs import catalog, remedies
from harness.bugs import periods as of_releases
from harness.bugs.periods import periods
from harness.bugs.results import Status

AFFECTED = [
    (name, version) for name in catalog.sound() for one in periods(name) for version in one.releases
]


@pytest.mark.parametrize("name", sorted({name for name, _ in AFFECTED}))
def test_a_remedy_is_the_nearest_release_that_was_tested_without_the_bug(name: str) -> None:
    statuses = {Version(version): status for version, status in of_releases.tested(name).items()}
    free = [version for version, status in statuses.items() if status is Status.NOT_AFFECTED]
    for version in (Version(v) for n, v in AFFECTED if n == name):
        newer, older = [v for v in free if v > version], [v for v in free if v < version]
        expected = min(newer) if newer else max(older) if older else None
        match = re.search(r"^use (the older )?\S+ (\d[\w.]*)", remedies.of(name, str(version)))
        assert (Version(match[2]) if match else None) == expected
        assert bool(match and match[1]) == bool(older and not newer)


def test_a_way_around_a_bug_names_no_release_that_the_records_know_better() -> None:
    for name in catalog.sound():
        scenario = catalog.scenario(name)
        subject = scenario.subject if scenario.pins else "torch"
        assert not (periods(name) and re.search(rf"{subject} \d", scenario.remedy)), name
        assert remedies.of(name), name


def test_or_later_is_said_only_of_a_release_after_the_last_affected_one() -> None:
    for name in catalog.sound():
        if match := re.search(r"^use \S+ (\S+) or later", remedies.of(name)):
            later = [v for n, v in AFFECTED if n == name and Version(v) >= Version(match[1])]
            assert not later, name


def test_one_release_avoids_the_most_bugs_and_is_the_nearest_of_those() -> None:
    names = ["bf16_local_gradients", "boundary_micro_batch", "fp16_overflow"]
    advice = remedies.advice("deepspeed", "0.18.7", names, [])
    assert advice is not None
    assert (advice.release, advice.remaining) == ("0.19.0", ("fp16_overflow",))
    assert str(advice) == (
        "deepspeed 0.19.0 has none of these 2 bugs: bf16_local_gradients, boundary_micro_batch; "
        "1 remains: fp16_overflow (not tried with your other pins)"
    )


def test_only_releases_that_fit_are_advised() -> None:
    def fits(package: str, release: str) -> bool:
        return package == "deepspeed" and Version(release) < Version("0.18.9")

    assert remedies.of("bf16_local_gradients", "0.18.7").startswith("use deepspeed 0.19.0")
    assert remedies.of("bf16_local_gradients", "0.18.7", fits).startswith("use the older deepspeed")
    nothing = remedies.of("bf16_local_gradients", "0.18.7", lambda *_: False)
    assert nothing.startswith("no release of deepspeed without it is for the Python of your files")
    names = ["bf16_local_gradients", "boundary_micro_batch", "fp16_overflow"]
    advice = remedies.advice("deepspeed", "0.18.7", names, [], fits)
    assert advice is None or Version(advice.release) < Version("0.18.9")


def test_a_release_with_as_many_other_bugs_is_not_advised() -> None:
    assert remedies.advice("deepspeed", "0.19.8", ["fp16_overflow"], []) is None
    advice = remedies.advice("transformers", "5.3.0", ["trainer_gas_twice"], ["rope_zero_init_v5"])
    assert advice is not None
    assert not advice.new


def test_no_release_before_the_major_one_is_advised() -> None:
    bugs = ["gpt2_counts_first_label", "heads_gas_ranks"]  # 4.40.2 has neither bug
    assert remedies.advice("transformers", "5.23.0", bugs, []) is None
    older = remedies.advice("transformers", "4.46.1", ["trainer_counts_first_label"], [])
    assert older is not None
