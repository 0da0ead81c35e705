"""The results of trials and runs. Standard library only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from harness.bugs.api.spec import Finding, Outcome, Verdict
from harness.system.errors import ExitCode


@dataclass(frozen=True)
class TrialResult:
    """The outcome of one trial, and its reason."""

    variant: str
    outcome: Outcome
    expected: Outcome | None
    """None if either ``symptom`` or ``clean`` is expected."""
    reason: str
    """The finding, how the trigger occurred, or what went wrong."""
    seconds: float = 0.0
    finding: Finding | None = None
    failure: Mapping[str, Any] | None = None
    """The rank that failed first, and its message."""
    insufficient_checks: Mapping[str, bool] | None = None
    """Plausible checks that miss the bug, and whether each fired."""
    shims: Mapping[str, int] | None = None
    """How often each shim was used, over all ranks."""
    environment: Mapping[str, Any] | None = None
    """Versions of Python, torch, CUDA and NCCL, and the GPU, on rank 0."""
    phases: Mapping[str, float] | None = None
    """Wall seconds of each phase, on the slowest rank."""

    @property
    def as_expected(self) -> bool:
        if self.expected is None:
            return self.outcome in (Outcome.SYMPTOM, Outcome.CLEAN)
        return self.outcome is self.expected


@dataclass(frozen=True)
class RunResult:
    """The verdict of a run, and its trials."""

    scenario: str
    verdict: Verdict
    reasons: tuple[str, ...]
    """Why the verdict is not ``reproduced``."""
    trials: tuple[TrialResult, ...]

    @property
    def exit_code(self) -> int:
        """The exit code of a command that ends with this result."""
        if self.verdict is Verdict.UNSUPPORTED:
            return ExitCode.UNSUPPORTED
        if self.verdict is Verdict.INCONCLUSIVE:
            return ExitCode.INCONCLUSIVE
        if self.verdict is Verdict.NOT_REPRODUCED or not all(t.as_expected for t in self.trials):
            return ExitCode.NOT_AS_EXPECTED
        return ExitCode.AS_EXPECTED

    def to_json(self) -> dict[str, Any]:
        return asdict(self, dict_factory=_by_name) | {"exit_code": self.exit_code}


def _by_name(fields: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """The fields by name, without an empty ``another``."""
    return {name: value for name, value in fields if value or name != "another"}
