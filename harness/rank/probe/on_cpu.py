"""Runs a script's CUDA calls on a CPU: most training scripts contain some.

Devices become the CPU, NCCL becomes gloo, and calls that only measure or wait do nothing. Each kind
of call is counted, and the report lists them. ``torch.cuda.is_available()`` stays false, so that a
script that supports CPUs chooses one itself. It is true only where the script or a library would
otherwise stop: in an ``assert``, or in an ``if`` that raises an error. ``torch.accelerator``
reports CUDA to scripts: some use DDP only with CUDA. Some packages also need the harness's shims.
"""

from __future__ import annotations

import ast
import functools
import linecache
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from importlib import metadata
from multiprocessing import spawn
from types import SimpleNamespace
from typing import Any

from harness.bugs.api.spec import Lane
from harness.rank import shims
from harness.rank.events import compiler_question, replace_everywhere

CUDA, CPU = "cuda", "cpu"
PACKAGES = ("/site-packages/", "/dist-packages/", "/lib/python")
"""Parts of the paths of code that is not the script's."""
COMPILER = "/torch/_inductor/"

SILENT = (
    "synchronize", "reset_peak_memory_stats", "reset_max_memory_allocated", "ipc_collect",
    "set_per_process_memory_fraction",
)  # fmt: skip
"""Functions of torch.cuda that only wait or measure."""

VALUES = {
    "current_device": 0,
    "get_device_name": CPU,
    "get_device_capability": (8, 0),
    "is_bf16_supported": True,
    "mem_get_info": (0, 1),
    "memory_summary": "",
    "get_device_properties": SimpleNamespace(
        name=CPU, total_memory=1, major=8, minor=0, multi_processor_count=1
    ),
}
"""The return values of other functions of torch.cuda."""

asked: Counter[str] = Counter()
"""How often the script called what a CPU does not have, by kind."""


def _count(kind: str) -> None:
    """Count a call, if it comes from the script and not from a package."""
    frame: Any = sys._getframe(1)
    while frame.f_code.co_filename == __file__:
        frame = frame.f_back
    if _of_script(frame):
        asked[kind] += 1


class Idle:
    """A stream or an event: on a CPU there is nothing to wait for."""

    def __init__(self, *_: Any, **__: Any) -> None:
        _count("streams and events")

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: 0.0


class Installing:
    """Installs the replacements in the process that unpickles it."""

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return install_cuda, ()


def install_in_children() -> None:
    """Install the replacements in interpreters that multiprocessing starts, too, before they run
    anything of the script: the first data that they receive does it."""
    prepared = spawn.get_preparation_data

    @functools.wraps(prepared)
    def prepare(*arguments: Any, **keywords: Any) -> dict[str, Any]:
        return {INSTALLING: Installing(), **prepared(*arguments, **keywords)}

    spawn.get_preparation_data = prepare


INSTALLING = "on the CPU"


def install_cuda() -> None:
    """Install the replacements in this process and in those that it spawns."""
    install_in_children()
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh
    from torch.nn.parallel import DistributedDataParallel

    cuda = torch.device(CUDA)  # the mode turns it into the CPU when it is passed to torch
    modes.append(_mode())
    modes[0].__enter__()
    for name in SILENT:
        setattr(torch.cuda, name, _returning(f"torch.cuda.{name}", None))
    for name, value in VALUES.items():
        original = getattr(torch.cuda, name)
        setattr(torch.cuda, name, _returning(f"torch.cuda.{name}", value, original))
    torch.cuda.set_device = _returning("set_device", None)
    torch.cuda.Stream = torch.cuda.Event = Idle  # type: ignore[misc, assignment]
    torch.cuda.stream = _returning("torch.cuda.stream", nullcontext())
    torch.cuda.current_stream = Idle  # type: ignore[assignment]
    torch.cuda.is_available = _for_scripts(torch.cuda.is_available, _demanded, True)
    torch.cuda.device_count = _for_scripts(
        torch.cuda.device_count, _asks, int(os.environ["LOCAL_WORLD_SIZE"])
    )
    if hasattr(torch, "accelerator"):
        _install_accelerator(torch.accelerator, cuda)
    torch.Generator = _generator()  # type: ignore[misc]
    torch.nn.Module.cuda = _nothing(torch.nn.Module.cuda)  # type: ignore[method-assign]
    _first_argument(torch.amp.GradScaler, "device", device=CUDA)
    _first_argument(torch.autocast, "device_type", dtype=torch.get_autocast_dtype(CUDA))
    _first_argument(DeviceMesh, "device_type")
    replace_everywhere(dist.device_mesh.init_device_mesh, _mesh)
    replace_everywhere(dist.init_process_group, functools.partial(_group, position=0))
    replace_everywhere(dist.new_group, functools.partial(_group, position=2))
    dist.Work.get_future = _future(dist.Work.get_future)  # type: ignore[method-assign]
    replace_everywhere(dist.barrier, _barrier)
    replace_everywhere(torch.load, _load)
    replace_everywhere(torch.set_default_device, _mesh)
    DistributedDataParallel.__init__ = _without(  # type: ignore[method-assign]
        DistributedDataParallel.__init__, "device_ids", "output_device"
    )


def _install_accelerator(accelerator: Any, cuda: Any) -> None:
    ranks = int(os.environ["LOCAL_WORLD_SIZE"])
    accelerator.is_available = _for_scripts(accelerator.is_available, _asks, True)
    accelerator.device_count = _for_scripts(accelerator.device_count, _asks, ranks)
    accelerator.current_accelerator = _for_scripts(
        accelerator.current_accelerator, _of_script, cuda
    )
    for name in ("set_device_index", "set_device_idx", "synchronize"):
        if hasattr(accelerator, name):
            setattr(accelerator, name, _returning(f"torch.accelerator.{name}", None))


modes: list[Any] = []
"""The installed mode, if any."""


@contextmanager
def without_mode() -> Iterator[None]:
    """Remove the mode within the context, for compiled code: torch's compiler traces modes only in
    part, and compiles again in a recomputing backward, where torch has no mode."""
    if not modes:
        yield
        return
    from torch import overrides

    def replace(stack: Sequence[Any]) -> Sequence[Any]:
        before = overrides._get_current_function_mode_stack()
        for _ in before:
            overrides._pop_mode()
        for mode in stack:
            overrides._push_mode(mode)
        return before

    before = replace([m for m in overrides._get_current_function_mode_stack() if m not in modes])
    try:
        yield
    finally:
        replace(before)


def _mode() -> Any:
    """A mode that replaces devices in the arguments of all functions of torch."""
    import torch
    from torch.overrides import TorchFunctionMode

    moves = {torch.Tensor.to, torch._C._nn._parse_to}
    stays = {torch.Tensor.cuda, torch.Tensor.pin_memory}
    compiling = compiler_question()

    class OnCpu(TorchFunctionMode):
        def __torch_function__(
            self, function: Any, types: Any, arguments: Any = (), keywords: Any = None
        ) -> Any:
            if compiling():
                return function(*arguments, **(keywords or {}))
            keywords = keywords or {}
            if function in stays:
                _count(function.__name__ + "()")
                return arguments[0]
            if function in moves:
                arguments = tuple(_numbered(one) for one in arguments)
            arguments = tuple(_device(one) for one in arguments)
            keywords = {name: _device(one) for name, one in keywords.items()}
            if type(keywords.get("device")) is int:
                keywords["device"] = _numbered(keywords["device"])
            if function is torch.device and len(arguments) == 2:
                arguments = arguments[:1]  # a CPU has no number
            return function(*arguments, **keywords)

    return OnCpu()


def _device(value: Any) -> Any:
    """The CPU instead of a GPU; any other value unchanged."""
    import torch

    if isinstance(value, str) and value.partition(":")[0] == CUDA:
        _count(CUDA)
        return CPU
    if isinstance(value, torch.device) and value.type == CUDA:
        _count(CUDA)
        return torch.device(CPU)
    return value


def _numbered(value: Any) -> Any:
    """The CPU instead of the number of a GPU; any other value unchanged."""
    if type(value) is not int:
        return value
    _count(CUDA)
    return CPU


def _returning(name: str, value: Any, original: Any = None) -> Callable[..., Any]:
    """A function that returns a value. Torch's compiler must not take the CPU for a GPU: it gets
    what torch's ``original`` returns or raises."""

    def returned(*arguments: Any, **keywords: Any) -> Any:
        if original is not None and COMPILER in sys._getframe(1).f_code.co_filename:
            return original(*arguments, **keywords)
        _count(name)
        return value

    return returned


def _for_scripts(function: Any, where: Callable[[Any], bool], value: Any) -> Any:
    """A function that returns ``value`` if ``where`` accepts its caller."""

    @functools.wraps(function)
    def called(*arguments: Any, **keywords: Any) -> Any:
        if where(sys._getframe(1)):
            _count(function.__name__)
            return value
        return function(*arguments, **keywords)

    return called


def _of_script(frame: Any) -> bool:
    file = frame.f_code.co_filename
    return not (file.startswith("<") or any(part in file for part in PACKAGES))


def _asks(frame: Any) -> bool:
    """Whether a frame is in the script, or stops without a GPU."""
    return _of_script(frame) or _demanded(frame)


CONDITION = re.compile(r"(^|;)\s*(assert|if|elif)\b")
LINES_OF_A_CONDITION = 4
"""How many lines of a condition are searched for the GPU."""


def _demanded(frame: Any) -> bool:
    """Whether a frame, in the script or in a library, stops without a GPU: in an ``assert``, or in
    an ``if`` that raises an error or exits. Torch itself does not count."""
    file, line = frame.f_code.co_filename, frame.f_lineno
    near = (linecache.getline(file, line - n) for n in range(LINES_OF_A_CONDITION))
    if "/torch/" in file or not any(map(CONDITION.search, near)):
        return False
    return any(first <= line <= last for first, last in _demands(file))


@functools.lru_cache
def _demands(file: str) -> list[tuple[int, int]]:
    """The first and last lines of the conditions at which a file may stop."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return []
    spans = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert) or (isinstance(node, ast.If) and _gives_up(node)):
            spans.append((node.test.lineno, node.test.end_lineno or node.test.lineno))
    return spans


def _gives_up(node: ast.If) -> bool:
    """Whether a script stops if a condition does not hold."""
    parts = (part for part in ast.walk(node.test) if isinstance(part, ast.UnaryOp))
    negated = any(isinstance(p.op, ast.Not) and "available" in ast.unparse(p) for p in parts)
    end = (node.body if negated else node.orelse)[-1:]
    if end and isinstance(end[0], ast.Expr) and isinstance(end[0].value, ast.Call):
        return ast.unparse(end[0].value.func) in ("exit", "quit", "sys.exit", "os._exit")
    return bool(end) and isinstance(end[0], ast.Raise)


def _nothing(move: Any) -> Any:
    """``Module.cuda``, which leaves the parameters where they are."""

    @functools.wraps(move)
    def stay(module: Any, device: Any = None) -> Any:
        _count("cuda()")
        return module

    return stay


def _generator() -> Any:
    import torch

    class Generator(torch.Generator):
        """A generator of the CPU."""

        def __new__(cls, device: Any = CPU) -> Generator:
            return super().__new__(cls, _device(device))  # type: ignore[call-arg]

    return Generator


def _first_argument(kind: Any, name: str, **by_default: Any) -> None:
    """Make a class take the CPU as its first argument, which is called ``name``. ``by_default`` has
    the values that other arguments default to on a GPU."""
    original = kind.__init__

    @functools.wraps(original)
    def init(self: Any, *arguments: Any, **keywords: Any) -> None:
        requested = arguments[0] if arguments else keywords.get(name, by_default.get(name))
        device = _device(requested)
        if device is not requested and len(arguments) < 2:
            keywords = {**by_default, **{n: v for n, v in keywords.items() if v is not None}}
        keywords.pop(name, None)
        original(self, device, *arguments[1:], **keywords)

    kind.__init__ = init


def _mesh(function: Any) -> Any:
    @functools.wraps(function)
    def call(device_type: Any, *arguments: Any, **keywords: Any) -> Any:
        return function(_device(device_type), *arguments, **keywords)

    return call


def _group(function: Any, position: int) -> Any:
    """``init_process_group`` and ``new_group``, whose backend is argument ``position``."""

    @functools.wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        positional = list(arguments)
        if len(positional) > position:
            positional[position] = _backend(positional[position])
        if "backend" in keywords:
            keywords["backend"] = _backend(keywords["backend"])
        if keywords.pop("device_id", None) is not None:
            _count("device_id")
        return function(*positional, **keywords)

    return call


def _backend(name: Any) -> Any:
    if isinstance(name, str) and "nccl" in name.lower():
        _count("nccl")
        return "gloo"
    return name


def _barrier(function: Any) -> Any:
    """``barrier`` without GPUs, which gloo does not take."""

    @functools.wraps(function)
    def waited(*arguments: Any, device_ids: Any = None, **keywords: Any) -> Any:
        if device_ids is not None:
            _count("device_ids")
        return function(*arguments, **keywords)

    return waited


def _future(function: Any) -> Any:
    """``Work.get_future``, which gloo lacks for reduce-scatter."""
    from torch.futures import Future

    @functools.wraps(function)
    def get(work: Any) -> Any:
        try:
            return function(work)
        except RuntimeError:
            _count("get_future")
            work.wait()
        future: Future[None] = Future()
        future.set_result(None)
        return future

    return get


def _load(function: Any) -> Any:
    """``torch.load`` that loads onto the CPU instead of a GPU."""

    @functools.wraps(function)
    def loaded(file: Any, map_location: Any = None, *arguments: Any, **keywords: Any) -> Any:
        if isinstance(map_location, Mapping):
            map_location = CPU
        return function(file, _device(map_location), *arguments, **keywords)

    return loaded


def _without(function: Any, *names: str) -> Any:
    """A function that ignores these arguments, which name GPUs."""

    @functools.wraps(function)
    def called(self: Any, module: Any, *arguments: Any, **keywords: Any) -> None:
        for name in names:
            if keywords.pop(name, None) is not None:
                _count(name)
        function(self, module, *([None] * len(arguments[:2])), *arguments[2:], **keywords)

    return called


SHIMMED = {"deepspeed": "deepspeed", "megatron": "megatron-core"}
"""Maps a word in a script to the package whose shims a probe uses; others serve scenarios."""

installed_shims: list[str] = []
"""The shims of this process."""


def install_shims(packages: list[str], lane: str) -> None:
    """Install the shims that the installed releases of these packages need."""
    releases = {}
    for name in packages:
        try:
            releases[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    points = [p.name for p in shims.needed(releases, Lane(lane)) if p.upstream in releases]
    shims.install(points)
    installed_shims.extend(points)
