"""A GPU divides by a plain number less exactly than a CPU: 9 / 10 differs in its last bit.

``10 ** (torch.arange(0, 10) / 10)`` has other values on CUDA than on the CPU in 2 of 10 elements.
So frequencies, schedules and tables that are computed like that depend on the device. It was found
in January 2024, in the search for the cause of the wrong rotary buffers of ``rope_zero_init``.
zero.Init also moves what a constructor computes to the GPU, and some differences remained after the
rounded positions had been explained.

Root cause: if the divisor is a plain number, or a scalar tensor on the CPU, torch's CUDA kernel for
division multiplies by its reciprocal, which is already rounded. If the divisor is a tensor on the
device, the kernel divides, and the results agree. Torch keeps this behaviour for speed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from harness.bugs import api

DIFFERING = [4, 9]
NINTH = {"host": 7.94328212738037109375, "device": 7.94328308105468750000}
"""10 ** (9 / 10) in float32."""
QUOTIENT = {"host": "0x3f666666", "device": "0x3f666667"}
"""9 / 10 in float32, as bits."""


def plan(at: api.Position) -> api.Plan:
    """Both expressions, on the CPU and on the device."""
    word, dtype = (
        api.matching("0x[0-9a-f]{8}", "32 bits"),
        api.matching(r"torch\.float\d+", "dtype"),
    )
    values = {"powers": both(api.many(api.NUMBER, 10)), "bits": both(api.many(word, 10))}
    facts = {"device": api.exactly(at.params.device), "dtype": dtype}
    return {"values": api.Kind({**facts, **values, "quotient": both(word)})}


def both(shape: api.Shape) -> api.Shape:
    """This shape for the CPU, ``host``, and for the device."""
    return api.held({"host": shape, "device": shape})


def run(ctx: api.Context) -> None:
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


def detect(records: api.Records) -> api.Finding | None:
    """The CPU and the device have different bits for 9 / 10, and so for the power of it. Element 4
    alone proves nothing: on a GPU its power differs in the last place even for equal exponents."""
    record = records.of("values")[0]
    pairs = list(zip(record["bits"]["host"], record["bits"]["device"], strict=True))
    differing = [index for index, (host, device) in enumerate(pairs) if host != device]
    quotient, powers = record["quotient"], record["powers"]
    if quotient["host"] == quotient["device"] and len(pairs) - 1 not in differing:
        return None
    ninth = {name: values[-1] for name, values in powers.items()}
    return api.Finding(
        f"elements {differing} of {len(pairs)} differ; the last is {ninth['host']:.20f} on the CPU "
        f"and {ninth['device']:.20f} on the device; 9 / 10 is {quotient['host']} and "
        f"{quotient['device']}",
        ranks=records.ranks,
        magnitude=max(abs(h - d) for h, d in zip(powers["host"], powers["device"], strict=True)),
        unit="between the CPU's power and the device's",
        documented=(differing, ninth, quotient) == (DIFFERING, NINTH, QUOTIENT),
    )


def exercised(records: api.Records) -> api.Exercise:
    """The device was a GPU, and the values were in float32."""
    record = records.of("values")[0]
    text = (
        f"{len(record['powers']['device'])} powers of the CPU were compared with those of "
        f"{record['device'].upper()}, in {record['dtype'].removeprefix('torch.')}"
    )
    on_gpu = record["device"] == "cuda" and record["dtype"] == "torch.float32"
    return api.Exercise.of(on_gpu, text)


def _differences(records: api.Records) -> Iterator[tuple[str, float]]:
    for record in records.of("values", 0):
        powers = zip(record["powers"]["device"], record["powers"]["host"], strict=True)
        yield from ((f"n = {n}", device - host) for n, (device, host) in enumerate(powers))


picture = api.bars(
    "10 ** (n / 10) on the device, less that on the CPU",
    "with a plain divisor the ninth power has other bits on a GPU",
    _differences,
    "difference",
)
