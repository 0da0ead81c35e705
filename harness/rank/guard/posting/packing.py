"""A post as bytes, and its parameters as columns."""

from __future__ import annotations

import ctypes
import hashlib
import json
import zlib
from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from functools import lru_cache
from typing import Any, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

from ...training.layouts import Described
from .posts import EACH_RANK, Post

TYPES = {"float32": torch.float32, "int64": torch.int64}

OF_THE_RANK = tuple(one.name for one in fields(Post) if one.metadata == EACH_RANK)


class Columns:
    """What many ranks say alike of their parameters, once for all of them."""

    def __init__(self, text: bytes) -> None:
        columns = json.loads(zlib.decompress(text))
        self.text, self.digest = text, _digest(text)
        self.lists: list[list[int]] = columns.pop("groups")
        self.groups = [tuple(ranks) for ranks in self.lists]
        self.group: list[int] = columns.pop("group")
        """By parameter, which of the groups averages its gradients."""
        self.fields: dict[str, list[Any]] = columns
        self.names: list[str] = columns["name"]
        self.numels: list[int] = columns["numel"]
        self.dtypes: list[str] = [
            master or dtype for master, dtype in zip(columns["master"], columns["dtype"])
        ]
        """In which the optimizer steps."""
        self.is_split = any(columns["part"]) or any(
            "tensor parallelism" in reason for reason in columns["left_out"]
        )
        """Whether tensor parallelism splits the model: then not each rank has a loss of its own."""
        hashes = [hashlib.blake2b(name.encode(), digest_size=8).digest() for name in self.names]
        signed = [int.from_bytes(digest, "big", signed=True) for digest in hashes]
        self.hashes = torch.tensor(signed, dtype=torch.int64)  # also of no parameter


OF_RANK = ("size", "begin", "end", "optimized", "copy", "ranks")
"""The fields of a parameter that are no columns."""

SIZE, BEGIN, END, OPTIMIZED, MARK = range(5)
"""The rows of a table's numbers."""


class ParameterTable(Sequence[Described]):
    """The parameters of a rank, as columns: no object for each parameter of a thousand ranks."""

    def __init__(self, columns: Columns, numbers: Tensor, marks: list[str]) -> None:
        self.columns, self.numbers, self.marks = columns, numbers, marks

    @staticmethod
    def of(described: Sequence[Described]) -> ParameterTable:
        """The columns of some parameters."""
        if isinstance(described, ParameterTable):
            return described
        groups: dict[tuple[int, ...], int] = {}
        marks: dict[str, int] = {}
        group, numbers = [], []
        for parameter in described:
            group.append(groups.setdefault(tuple(parameter.ranks), len(groups)))
            mark = marks.setdefault(parameter.copy, len(marks))
            numbers.append(
                [parameter.size, parameter.begin, parameter.end, int(parameter.optimized), mark]
            )
        names = [parameter.name for parameter in fields(Described) if parameter.name not in OF_RANK]
        columns: dict[str, Any] = {
            name: [getattr(parameter, name) for parameter in described] for name in names
        }
        columns.update(groups=list(groups), group=group)
        text = zlib.compress(json.dumps(columns).encode())
        rows = torch.tensor(numbers, dtype=torch.int64).reshape(-1, 5).T.contiguous()
        return ParameterTable(columns_of(text), rows, list(marks))

    def __len__(self) -> int:
        return len(self.columns.names)

    def __getitem__(self, number: Any) -> Any:
        columns = self.columns
        size, begin, end, optimized, mark = self.numbers[:, number].tolist()
        return Described(
            size=size,
            begin=begin,
            end=end,
            optimized=bool(optimized),
            ranks=columns.lists[columns.group[number]],
            copy=self.marks[mark],
            **{name: column[number] for name, column in columns.fields.items()},
        )


def _digest(text: bytes) -> str:
    return hashlib.blake2b(text, digest_size=16).hexdigest()


@lru_cache(maxsize=256)
def columns_of(text: bytes) -> Columns:
    """What a text says, with which ``ParameterTable.of`` begins."""
    return Columns(text)


def packed(post: Post) -> bytes:
    """A post as bytes."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in post.tensors.items()}
    header: dict[str, Any] = {name: _plain(getattr(post, name)) for name in OF_THE_RANK}
    text = b""
    if post.parameters.described:
        table = ParameterTable.of(post.parameters.described)
        tensors["layout"], text = table.numbers.flatten(), table.columns.text
        header["marks"] = table.marks
    widest_first = sorted(tensors.items(), key=lambda item: -item[1].element_size())  # aligned
    header["tensors"] = {name: [str(t.dtype)[6:], t.numel()] for name, t in widest_first}
    parts = [json.dumps(header).encode(), _packed_form(post), text]
    sizes = b"".join(len(part).to_bytes(8, "big") for part in parts)
    values = [ctypes.string_at(t.data_ptr(), t.numel() * t.element_size()) for _, t in widest_first]
    return b"".join([sizes, *parts, *values])


def _packed_form(post: Post) -> bytes:
    """What is not of the rank alone."""
    post = replace(post, parameters=replace(post.parameters, described=[]))
    names = [name for name in vars(post) if name not in (*OF_THE_RANK, "tensors")]
    form = {name: _plain(getattr(post, name)) for name in names}
    return zlib.compress(json.dumps(form).encode(), 1)


def form_of(post: Post) -> str:
    """The ``form`` of a post that never was bytes."""
    return _digest(_packed_form(post))


@lru_cache(maxsize=64)
def _form(text: bytes) -> dict[str, Any]:
    """The fields of a post's form: posts of a thousand ranks have the same objects."""
    return _fields(Post, json.loads(zlib.decompress(text)))


def _plain(value: Any) -> Any:
    """A value of a post for JSON: a dataclass, or a list of some, as dictionaries."""
    if is_dataclass(value) and not isinstance(value, type):
        return {name: _plain(one) for name, one in vars(value).items()}
    return [_plain(one) for one in value] if isinstance(value, list) else value


_types = lru_cache(maxsize=None)(get_type_hints)


def _fields(kind: Any, values: dict[str, Any]) -> dict[str, Any]:
    """The fields of a dataclass that ``_plain`` has made plain."""
    return {name: _built(_types(kind)[name], value) for name, value in values.items()}


def _built(kind: Any, value: Any) -> Any:
    if hasattr(kind, "__dataclass_fields__"):
        return kind(**_fields(kind, value))
    inner = get_args(kind)[0] if get_origin(kind) is list else None
    return [_built(inner, one) for one in value] if is_dataclass(inner) else value


def unpacked(data: bytes) -> Post:
    """The post of these bytes. Raises ValueError if they are none."""
    try:
        return _unpacked(data)
    except (AttributeError, IndexError, KeyError, OverflowError, TypeError, zlib.error) as error:
        raise ValueError(f"no post: {error!r}") from error
    except RuntimeError as error:  # of torch: the buffer has fewer values
        raise ValueError(f"no post: {error}") from error


def _unpacked(data: bytes) -> Post:
    at, parts = 24, []
    for start in (0, 8, 16):
        size = int.from_bytes(data[start : start + 8], "big")
        parts.append(data[at : at + size])
        at += size
    header, form = json.loads(parts[0]), _form(parts[1])
    tensors = _tensors(header.pop("tensors"), bytearray(data[at:]))
    described: Sequence[Described] = []
    marks = header.pop("marks", [])
    if parts[2]:
        numbers = tensors.pop("layout").reshape(5, -1)
        described = ParameterTable(columns_of(parts[2]), numbers, marks)
        if numbers.shape[1] != len(described):
            raise ValueError("no post: its parameters are others")
    parameters = replace(form["parameters"], described=described)
    post = Post(**_fields(Post, header), **{**form, "parameters": parameters}, tensors=tensors)
    post.run.form = _digest(parts[1])
    return post


def _tensors(sizes: dict[str, Any], buffer: bytearray) -> dict[str, Tensor]:
    tensors, at = {}, 0
    for name, (dtype, count) in sizes.items():
        kind = TYPES[dtype]
        if count:
            tensors[name] = torch.frombuffer(buffer, dtype=kind, count=count, offset=at)
        else:
            tensors[name] = torch.zeros(0, dtype=kind)
        at += count * tensors[name].element_size()
    return tensors
