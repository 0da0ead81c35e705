"""Shims: which ones apply, that each use is counted, and that none touches a defect."""

from __future__ import annotations

import builtins
import collections
import importlib
import importlib.util
import os
import pkgutil
import sys
from collections import Counter, abc
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from packaging.specifiers import SpecifierSet
from torch.distributed.pipelining import PipelineStage

from harness.bugs import catalog
from harness.bugs.api.spec import Defect, Lane
from harness.rank import apex, cuda_on_cpu, shims
from harness.rank.cuda_on_cpu.functions import CLASSES, FACTORIES, FUNCTIONS
from harness.rank.shims import megatron
from scenarios.deepspeed.bf16_clip import fused as kernels

OFFLINE = "huggingface_hub.offline"


def names(lane: Lane, **pins: str) -> set[str]:
    return {point.name for point in shims.needed(pins, lane)} - {OFFLINE}


def test_every_shim_is_declared_completely_and_once() -> None:
    assert len({point.name for point in shims.POINTS}) == len(shims.POINTS)
    for point in shims.POINTS:
        assert point.name.count(".") == 1
        assert point.why
        assert point.lanes
        SpecifierSet(point.releases)


@pytest.mark.parametrize(
    ("shim", "release", "applies"),
    [
        ("deepspeed.torch_six", "0.8.3", True),
        ("deepspeed.torch_six", "0.9.0", False),
        ("deepspeed.intel_modules", "0.14.0", True),
        ("deepspeed.intel_modules", "0.14.1", False),
        ("deepspeed.shm_comm", "0.15.0rc1", True),
    ],
)
def test_a_shim_applies_only_to_its_releases_and_their_candidates(
    shim: str, release: str, applies: bool
) -> None:
    assert (shim in names(Lane.CPU, deepspeed=release)) is applies


def test_a_shim_for_a_box_without_a_gpu_stays_off_the_gpu_lane() -> None:
    gpu = names(Lane.GPU, deepspeed="0.8.3", **{"megatron-core": "0.14.0"})
    expected = ("torch_six", "elastic_names", "flatten_helper", "whole_checkpoints")
    assert gpu == {*(f"deepspeed.{name}" for name in expected), "megatron-core.undefined_gemm"}
    assert names(Lane.GPU, deepspeed="0.19.8") == set()


@pytest.mark.parametrize("lane", Lane)
@pytest.mark.parametrize("pins", [{}, {"another": "1.0"}, {"transformers": "5.2.0"}])
def test_every_run_is_offline_and_other_shims_need_their_package(
    lane: Lane, pins: dict[str, str]
) -> None:
    assert [point.name for point in shims.needed(pins, lane)] == [OFFLINE]


def test_huggingface_hub_is_offline_and_that_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    assert shims.install([OFFLINE]) == {OFFLINE: 1}
    assert os.environ["HF_HUB_OFFLINE"] == "1"


@pytest.fixture(scope="module")
def defects() -> list[Defect]:
    """All defects. This imports the scenarios before ``unharmed_torch`` copies the modules; later
    tests would import their helpers a second time otherwise, with other classes."""
    return [defect for name in catalog.names() for defect in catalog.scenario(name).defects]


def test_no_shim_touches_the_path_of_a_defect(defects: Sequence[Defect]) -> None:
    folders = [Path(str(package.__file__)).parent for package in (shims, cuda_on_cpu)]
    sources = "".join(file.read_text() for folder in folders for file in folder.rglob("*.py"))
    for defect in defects:
        assert defect.file.removesuffix(".py").replace("/", ".") not in sources
        if defect.upstream != "torch":  # other packages use its names too, such as load
            assert defect.scope.split(".")[0] not in sources


@pytest.fixture
def count() -> Counter[str]:
    return Counter()


CUDA = """set_device synchronize reset_peak_memory_stats empty_cache Event Stream current_stream
default_stream current_device FloatTensor ByteTensor"""


@pytest.fixture(autouse=True)
def unharmed_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restores, after the test, what a shim changes in torch."""
    changed: dict[object, Sequence[str]] = {
        torch.cuda: CUDA.split(),
        torch.cuda.nvtx: ("range", "range_push", "range_pop"),
        torch.nn.Module: ("to",),
        torch.Tensor: ("to", "type", "cuda"),
        torch: ("compile", "load", *(name.removeprefix("torch.") for name in FACTORIES)),
        torch.distributed: ("batch_isend_irecv",),
        PipelineStage: ("_get_init_p2p_neighbors_ops",),
    }
    for owner, attributes in changed.items():
        for name in attributes:
            monkeypatch.setattr(owner, name, getattr(owner, name))
    monkeypatch.setattr(torch, "_six", None, raising=False)
    monkeypatch.setattr(collections, "__getattr__", None, raising=False)
    monkeypatch.setattr(sys, "modules", dict(sys.modules))


def test_an_installed_shim_counts_its_uses() -> None:
    uses = shims.install(["deepspeed.torch_six"])
    assert uses == {"deepspeed.torch_six": 0}
    six = importlib.import_module("torch._six")
    assert six.inf == float("inf")
    assert uses == {"deepspeed.torch_six": 1}


def test_types_that_python_moved_are_taken_from_collections_and_counted() -> None:
    uses = shims.install(["deepspeed.collection_types"])
    module: Any = collections
    assert module.Mapping is abc.Mapping
    assert uses == {"deepspeed.collection_types": 1}
    with pytest.raises(AttributeError, match="module 'collections' has no attribute 'Other'"):
        _ = module.Other


class Work:
    """An operation that may have been waited for."""

    waited = False

    def wait(self) -> None:
        self.waited = True


def test_the_last_operation_of_a_batch_waits_for_all_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    works = [Work(), Work()]
    monkeypatch.setattr(torch.distributed, "batch_isend_irecv", list)
    uses = shims.install(["torch.whole_batches"])
    dist: Any = torch.distributed
    dist.batch_isend_irecv(works).pop().wait()
    assert all(work.waited for work in works)
    assert uses == {"torch.whole_batches": 1}


def test_stages_begin_without_a_handshake() -> None:
    uses = shims.install(["torch.no_handshake"])
    stage: Any = PipelineStage
    assert stage._get_init_p2p_neighbors_ops(None) == []
    assert uses == {"torch.no_handshake": 1}


def test_fsdp_on_a_cpu_has_streams_and_gathers_into_a_tensor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("Stream", "Event", "_current_stream", "_default_cpu_stream"):
        monkeypatch.setattr(torch.cpu, name, None)
    dist: Any = torch.distributed
    monkeypatch.setattr(dist, "all_gather_into_tensor", None)
    monkeypatch.setattr(dist, "get_world_size", lambda _: 2)
    monkeypatch.setattr(dist, "all_gather", lambda parts, part, _: [p.copy_(part) for p in parts])
    uses = shims.install(["torch.fsdp_on_cpu"])
    cpu: Any = torch.cpu
    with cpu.stream(cpu.Stream(priority=-1)):
        cpu.current_stream().wait_stream(cpu.Stream())
    assert cpu.Event().query()
    whole = torch.zeros(4)
    dist.all_gather_into_tensor(whole, torch.tensor([1.0, 2.0]), group=None)
    assert whole.tolist() == [1, 2, 1, 2]
    assert uses == {"torch.fsdp_on_cpu": 4}


@pytest.mark.parametrize("torch_release", ["2.1.2", "2.6.0", "2.8.0", "2.9.1", "2.10.0"])
def test_a_shim_of_torch_is_for_old_releases_on_the_cpu(torch_release: str) -> None:
    needed = {
        "2.1.2": {"torch.whole_batches", "torch.fsdp_on_cpu"},
        "2.9.1": {"torch.no_handshake"},
        "2.10.0": set(),
    }
    expected = needed.get(torch_release, {"torch.whole_batches"})
    assert names(Lane.CPU, torch=torch_release) == expected
    assert names(Lane.GPU, torch=torch_release) == set()


@pytest.mark.parametrize("engine", [None, ModuleSpec("transformer_engine", None)])
def test_a_name_that_a_failed_import_left_undefined_is_none(
    monkeypatch: pytest.MonkeyPatch, engine: ModuleSpec | None
) -> None:
    monkeypatch.setattr(megatron, "find_spec", {"transformer_engine": engine}.get)
    monkeypatch.setattr(builtins, "te_general_gemm", "undefined", raising=False)
    shim = "megatron-core.undefined_gemm"
    assert shims.install([shim]) == {shim: 0 if engine else 1}
    assert eval("te_general_gemm") == ("undefined" if engine else None)


STAND_INS = "deepspeed.cuda_stand_ins"


def test_cuda_means_the_cpu_and_every_use_is_counted() -> None:
    uses = shims.install([STAND_INS])
    tensors = [
        torch.ones(1).to("cuda:0"),
        torch.ones(1).to(device=torch.device("cuda")),
        torch.nn.Linear(1, 1).to("cuda").weight,
    ]
    assert {str(tensor.device) for tensor in tensors} == {"cpu"}
    assert uses[STAND_INS] == 3
    torch.cuda.synchronize()
    assert str(torch.cuda.current_device()) == "cpu"
    assert uses[STAND_INS] == 5


def test_events_measure_time_and_only_what_is_called_is_counted() -> None:
    uses = shims.install([STAND_INS])
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    torch.cuda.current_stream().wait_stream(torch.cuda.Stream())
    end.record()
    assert start.elapsed_time(end) >= 0
    assert isinstance(start, torch.cuda.Event)
    with torch.cuda.nvtx.range("step"):
        torch.cuda.nvtx.range_push("part")
    assert uses[STAND_INS] == 2


def test_other_moves_stay_as_they_are_and_uncounted() -> None:
    uses = shims.install([STAND_INS])
    assert torch.ones(1).to(torch.bfloat16).dtype is torch.bfloat16
    assert str(torch.ones(1).to("meta").device) == "meta"
    assert torch.ones(1).to(torch.zeros(1, dtype=torch.int8)).dtype is torch.int8
    assert uses[STAND_INS] == 0


TYPE_NAMES = ("deepspeed.cpu_type_names", "megatron-core.cuda_type_names")


@pytest.mark.parametrize("names", [TYPE_NAMES, TYPE_NAMES[::-1]])
def test_a_type_names_the_device_of_its_package_whichever_shim_came_first(
    names: tuple[str, str],
) -> None:
    uses = shims.install(names)
    code = "torch.ones(1).type()"
    assert called_from("deepspeed.runtime.engine", code) == "torch.cpu.FloatTensor"
    assert called_from("megatron.core.optimizer", code) == "torch.cuda.FloatTensor"
    assert called_from("torch.nn", code) == "torch.FloatTensor"
    cast = called_from("deepspeed.runtime.engine", "torch.ones(1).type(torch.int8)")
    assert isinstance(cast, torch.Tensor)
    assert uses == dict.fromkeys(names, 1)


def test_every_function_of_the_emulation_exists_in_torch() -> None:
    """One of two names is that of an older or newer release."""
    missing = {name for name in {**FUNCTIONS, **CLASSES} if not exists(name)}
    assert missing <= {"torch.accelerator.set_device_idx", "torch.accelerator.set_device_index"}


def exists(name: str) -> bool:
    owner, _, attribute = name.rpartition(".")
    return hasattr(pkgutil.resolve_name(owner), attribute)


def called_from(module: str, code: str) -> object:
    """Evaluate an expression as in a module of this name."""
    return eval(code, {"__name__": module, "torch": torch})


@pytest.fixture
def megatron_uses() -> Counter[str]:
    """Installs Megatron-core's shims for a machine without a GPU; returns the counter of uses."""
    pins = {"megatron-core": "0.16.1"}
    return shims.install(sorted(names(Lane.CPU, **pins) - names(Lane.GPU, **pins)))


MEGATRON_ASKS = {
    "current_device": ("torch.cuda.current_device()", torch.device("cpu")),
    "synchronize": ("torch.cuda.synchronize()", None),
    "cuda_literal": ("torch.zeros(1, device='cuda').device", torch.device("cpu")),
    "tensor_cuda": ("torch.ones(1).cuda(non_blocking=True).device", torch.device("cpu")),
    "cuda_type_names": ("torch.ones(1).type()", "torch.cuda.FloatTensor"),
}


@pytest.mark.parametrize("name", MEGATRON_ASKS)
def test_megatron_core_gets_the_cpu_where_it_asks_for_a_gpu(
    name: str, megatron_uses: Counter[str]
) -> None:
    code, answer = MEGATRON_ASKS[name]
    assert called_from("megatron.core.optimizer.optimizer", code) == answer
    assert megatron_uses[f"megatron-core.{name}"] == 1
    assert sum(megatron_uses.values()) == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a GPU to give to those who ask")
@pytest.mark.parametrize("name", MEGATRON_ASKS)
def test_others_see_nothing_of_megatron_cores_shims(name: str, megatron_uses: Counter[str]) -> None:
    for module in ("deepspeed.runtime.engine", "megatronics", "torch.distributed"):
        try:
            answer = called_from(module, MEGATRON_ASKS[name][0])
        except (AssertionError, RuntimeError):
            continue  # torch: no CUDA here
        assert answer == "torch.FloatTensor"
    assert not any(megatron_uses.values())


def test_the_devices_that_megatron_core_names_itself_are_kept(megatron_uses: Counter[str]) -> None:
    tensor = called_from("megatron.core", "torch.zeros(1, device='meta')")
    assert isinstance(tensor, torch.Tensor)
    assert tensor.device.type == "meta"
    assert not any(megatron_uses.values())


def with_apex(monkeypatch: pytest.MonkeyPatch, is_installed: bool) -> None:
    """Make apex and its kernels look installed, or not."""
    spec = ModuleSpec("apex", None, origin="apex/__init__.py") if is_installed else None
    names = ("apex", "amp_C")

    def find(name: str) -> ModuleSpec | None:
        module = sys.modules.get(name)
        return module.__spec__ if module else spec

    for name in (*names, "apex.optimizers", "apex.multi_tensor_apply"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(apex, "find_spec", find)
    monkeypatch.setattr(apex, "_layers", [])


def test_without_apex_torchs_adamw_stands_in_and_its_kernels_raise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_apex(monkeypatch, is_installed=False)
    uses = shims.install(["megatron-core.apex_optimizers"])
    optimizers = importlib.import_module("apex.optimizers")
    assert optimizers.FusedAdam is torch.optim.AdamW
    applier = importlib.import_module("apex.multi_tensor_apply").multi_tensor_applier
    kernel = importlib.import_module("amp_C").multi_tensor_l2norm
    for fused in (applier, kernel):
        with pytest.raises(NotImplementedError, match="NVIDIA's apex"):
            fused()
    assert uses["megatron-core.apex_optimizers"] == 3
    assert apex.state() == "not installed"  # the stand-in does not count as apex


def test_where_apex_is_installed_it_is_used_and_the_evidence_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_apex(monkeypatch, is_installed=True)
    uses = shims.install(["megatron-core.apex_optimizers"])
    assert "apex" not in sys.modules
    assert uses == {"megatron-core.apex_optimizers": 0}
    assert apex.state() == "installed"
    real = ModuleType("apex")
    real.__file__ = "apex/__init__.py"
    real.__spec__ = ModuleSpec("apex", None, origin=real.__file__)
    monkeypatch.setitem(sys.modules, "apex", real)
    assert apex.state() == "imported"
    apex.use("FusedAdam")
    assert apex.state() == "used: FusedAdam"


@pytest.mark.parametrize(
    ("lane", "is_installed", "fused"),
    [(Lane.GPU, True, True), (Lane.GPU, False, False), (Lane.CPU, True, False)],
)
def test_apexs_kernels_are_for_gpus_where_it_is_installed(
    monkeypatch: pytest.MonkeyPatch, lane: Lane, is_installed: bool, fused: bool
) -> None:
    with_apex(monkeypatch, is_installed)

    class Fused(torch.nn.LayerNorm):
        pass

    normalization, optimizers = ModuleType("apex.normalization"), ModuleType("apex.optimizers")
    normalization.MixedFusedLayerNorm = Fused  # type: ignore[attr-defined]
    optimizers.FusedAdam = lambda *_, **__: "apex's"  # type: ignore[attr-defined]
    for module in (normalization, optimizers):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(torch.optim, "Adam", lambda *_, **__: "torch's")
    assert kernels.layer_norm(lane) is (Fused if fused else torch.nn.LayerNorm)
    assert kernels.adam(lane, [], 1e-3) == ("apex's" if fused else "torch's")


Call = tuple[torch.Tensor, torch.Tensor, Mock]


@pytest.fixture
def gathers(monkeypatch: pytest.MonkeyPatch) -> list[Call]:
    """Replaces the collective; lists its calls, with the work that each call returned."""
    calls: list[Call] = []

    def gather(output_tensor: torch.Tensor, input_tensor: torch.Tensor, **_: object) -> Mock:
        calls.append((output_tensor, input_tensor, Mock()))
        return calls[-1][-1]

    monkeypatch.setattr(torch.distributed, "all_gather_into_tensor", gather)
    return calls


def test_each_gather_of_parameters_is_waited_for(gathers: list[Call]) -> None:
    uses = shims.install(["deepspeed.gathers_in_order"])
    for _ in range(3):
        torch.distributed.all_gather_into_tensor(torch.zeros(2), torch.zeros(1), async_op=True)
    assert [work.wait.call_count for _, _, work in gathers] == [1, 1, 1]
    assert uses["deepspeed.gathers_in_order"] == 3


@pytest.mark.parametrize("upstream", ["accelerate", "pytorch-lightning"])
@pytest.mark.parametrize(("beside", "hidden"), [(True, False), (False, True)])
def test_a_transformers_from_elsewhere_is_hidden(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, upstream: str, beside: bool, hidden: bool
) -> None:
    module = upstream.replace("-", "_")
    places = {module: "overlay", "transformers": "overlay" if beside else "base"}
    for package, place in places.items():
        folder = tmp_path / place / package
        folder.mkdir(parents=True)
        (folder / "__init__.py").touch()
        monkeypatch.delitem(sys.modules, package, raising=False)
    for place in ("base", "overlay"):
        monkeypatch.syspath_prepend(str(tmp_path / place))
    uses = shims.install([f"{upstream}.own_transformers"])
    try:
        assert (importlib.util.find_spec("transformers") is None) is hidden
        assert uses[f"{upstream}.own_transformers"] == hidden
    finally:
        sys.modules.pop("transformers", None)
