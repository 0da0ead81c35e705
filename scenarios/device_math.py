"""A GPU divides by a plain number less exactly than a CPU: 9 / 10 differs in its last bit.

``10 ** (torch.arange(0, 10) / 10)`` gives other values on CUDA than on the CPU in 2 of 10 elements.
Frequencies, schedules and tables that are computed like that depend on where they were computed.

Found in January 2024 while the wrong rotary buffers of ``rope_zero_init`` were hunted: zero.Init
also moves what a constructor computes to the GPU, and some differences stayed after the rounded
positions had been explained.

Root cause: torch's CUDA kernel for division takes a divisor that is a plain number, or a scalar
tensor on the CPU, as a multiplication by its reciprocal, which was rounded already. A divisor that
is a tensor on the device is really divided by, and the results agree. Torch keeps it so for speed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.records import Records
from harness.spec import Finding, Lane, Outcome, Scenario, Variant

if TYPE_CHECKING:
    from harness.rank import Context

DIFFERING = [4, 9]
NINTH = {"host": 7.94328212738037109375, "device": 7.94328308105468750000}
"""10 ** (9 / 10) in float32."""
QUOTIENT = {"host": "0x3f666666", "device": "0x3f666667"}
"""9 / 10 in float32, as bits."""


@dataclass
class Params:
    """The knobs."""

    divisor: str = "number"
    """What is divided by: a plain ``number``, or a ``tensor`` on the device."""
    device: str = "cuda"
    """What is compared with the CPU: ``cuda``, or the ``cpu`` with itself."""

    def __post_init__(self) -> None:
        if self.divisor not in ("number", "tensor"):
            raise ValueError(f"scenario.divisor={self.divisor}: choose number or tensor")
        if self.device not in ("cuda", "cpu"):
            raise ValueError(f"scenario.device={self.device}: choose cuda or cpu")


SCENARIO = Scenario(
    title="CUDA multiplies by the rounded reciprocal of a plain divisor: 9 / 10 is not that of "
    "the CPU",
    report=(
        "Enable deepspeed.zero.Init causes very strange spikes in PPO policy_loss",
        "https://github.com/microsoft/DeepSpeed/issues/4932",
        "https://github.com/pytorch/pytorch/issues/186618",
    ),
    fix="none in torch: divide by a tensor on the device",
    symptom="10 ** (torch.arange(0, 10) / 10) ends in 7.94328212738037109375 on the CPU and in "
    "7.94328308105468750000 on CUDA",
    trigger="values computed on a GPU and compared bit by bit with those of the CPU",
    remedy="divide by a tensor on the device, and compare with a tolerance",
    pins={},
    date="2026-11-20",
    ranks=1,
    lanes=(Lane.GPU,),
    variants={
        "buggy": Variant("divided by the number 10", Outcome.SYMPTOM),
        "fixed": Variant(
            "divided by a tensor on the device", Outcome.CLEAN, params={"divisor": "tensor"}
        ),
        "control": Variant(
            "divided by the number 10, on the CPU both times", Outcome.CLEAN,
            params={"device": "cpu"}, triggers=False,
        ),
    },
)  # fmt: skip


def run(ctx: Context) -> None:
    """Compute the report's two expressions on the CPU and on the device."""
    import torch

    places = {"host": torch.device("cpu"), "device": torch.device(ctx.params.device)}
    powers, quotients = {}, {}
    for name, place in places.items():
        divisor = torch.tensor(10, device=place) if ctx.params.divisor == "tensor" else 10
        powers[name] = 10 ** (torch.arange(0, 10, device=place) / divisor)
        quotients[name] = torch.tensor(9, device=place) / divisor
    ctx.record(
        "values",
        device=powers["device"].device.type,
        dtype=str(powers["device"].dtype),
        powers={name: values.tolist() for name, values in powers.items()},
        bits={name: [_bits(v) for v in values] for name, values in powers.items()},
        quotient={name: _bits(value) for name, value in quotients.items()},
    )


def _bits(value: Any) -> str:
    import torch

    return f"{value.cpu().view(torch.int32).item():#010x}"


def detect(records: Records) -> Finding | None:
    """The CPU and the device have other bits for 9 / 10, and so for the power of it.

    Element 4 alone proves nothing: its power differs by one unit in the last place on a GPU also
    where both start from the same exponent.
    """
    seen = records.one("values")
    if seen is None:
        return None
    pairs = list(zip(seen["bits"]["host"], seen["bits"]["device"], strict=True))
    differing = [index for index, (host, device) in enumerate(pairs) if host != device]
    same_quotient = seen["quotient"]["host"] == seen["quotient"]["device"]
    if same_quotient and len(pairs) - 1 not in differing:
        return None
    last = {name: values[-1] for name, values in seen["powers"].items()}
    return Finding(
        message=(
            f"elements {differing} of {len(pairs)} differ; the last is {last['host']:.20f} on the "
            f"CPU and {last['device']:.20f} on the device; 9 / 10 is {seen['quotient']['host']} "
            f"and {seen['quotient']['device']}"
        ),
        ranks=records.ranks,
        magnitude=max(map(_distance, seen["powers"]["host"], seen["powers"]["device"])),
        documented=_documented(seen, differing, last),
    )


def _distance(host: float, device: float) -> float:
    return abs(host - device)


def _documented(seen: Mapping[str, Any], differing: list[int], last: Mapping[str, float]) -> bool:
    return differing == DIFFERING and last == NINTH and seen["quotient"] == QUOTIENT


def exercised(records: Records) -> str | None:
    """A GPU was asked, in float32, and answered with a whole table."""
    seen = records.one("values")
    if seen is None or seen["device"] != "cuda" or seen["dtype"] != "torch.float32":
        return None
    return (
        f"9 / 10 ({seen['quotient']['device']}) and the last of {len(seen['powers']['device'])} "
        "float32 powers are bitwise the same on the CPU and on CUDA"
    )
