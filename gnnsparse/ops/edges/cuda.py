"""Passes over edges on GPUs: a kernel is generated for each and compiled by NVRTC, which comes with torch."""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
import hashlib
import importlib.util
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from gnnsparse import _native
from gnnsparse.errors import bad_value
from gnnsparse.formats.csr import PaddedCsr
from gnnsparse.ops.edges.program import FEATURES, Pass, Step, kinds_of
from gnnsparse.ops.edges.rows import Rows
from gnnsparse.runtime.cache import CACHE_VERSION, GraphCache
from gnnsparse.runtime.device import path, tensor_maker
from gnnsparse.runtime.memo import ForkLock

__all__ = ["available", "bind"]

#: In the order of native/include/gnnsparse/edge_rows.h.
INPUTS = (
    "gathered", "row", "edge", "gathered_number", "row_number", "edge_number", "vector", "vector_number",
    "mapped", "gathered_winner", "row_winner", "gathered_wide", "row_wide",
)  # fmt: skip
OUTPUTS = (
    "sum", "max", "min", "edge", "row_number", "edge_number", "vector", "mapped_edge", "mapped_weight",
)  # fmt: skip
_STORAGE = (torch.float32, torch.float16, torch.bfloat16)
#: What kernels of all passes are made of, below native/include or native/cuda.
_HEADERS = (
    "gnnsparse/architecture.h", "gnnsparse/edge_rows.h", "device/approximate.cuh", "device/async.cuh",
    "device/scalars.cuh", "kernels/edges/edge_rows.cuh",
)  # fmt: skip
_FUNCTIONS = {
    "neg": "-{0}", "abs": "fabsf({0})", "exp": "expf({0})", "expm1": "expm1f({0})", "log": "logf({0})",
    "log1p": "log1pf({0})", "sqrt": "sqrtf({0})", "tanh": "tanhf({0})", "sigmoid": "edge_sigmoid({0})",
    "softplus": "edge_softplus({0})", "erf": "erff({0})", "sin": "sinf({0})", "cos": "cosf({0})",
    "relu": "edge_relu({0})", "add": "{0} + {1}", "sub": "{0} - {1}", "mul": "{0} * {1}",
    "div": "{0} / {1}", "maximum": "edge_maximum({0}, {1})", "minimum": "edge_minimum({0}, {1})",
    "gt": "{0} > {1} ? 1.0f : 0.0f", "ge": "{0} >= {1} ? 1.0f : 0.0f", "eq": "{0} == {1} ? 1.0f : 0.0f",
    "where": "{0} != 0.0f ? {1} : {2}",
}  # fmt: skip
_WARPS = 4  # of a block
#: Shared memory of a block, for which the edges of a step and the steps on their way are chosen.
_RING_BYTES = 40 << 10
_MOST_RING_BYTES = 96 << 10
#: Longer rows are cut.
_ROW_LIMIT = 128
#: Edges of the rows that a warp takes one after another: few where their bytes bind, so that warps side by
#: side gather what is in the cache; more where a lane holds a map, which each warp loads, or half as many
#: lanes hold the features; and where warps are few and take turns. At most _MOST_ROWS rows.
_GROUP, _LARGE_GROUP, _PERSISTENT_GROUP, _MOST_ROWS = 48, 192, 128, 32
#: Inputs and outputs that a launch has room for.
_MOST_INPUTS, _MOST_OUTPUTS = 32, 24
_FLAGS = ("--std=c++17", "--device-as-default-execution-space", "--prec-div=false", "--prec-sqrt=false")


class Variant(NamedTuple):
    """A pass as it is compiled: in a storage dtype, for features that 2 ** `lanes_log` lanes hold.

    `is_whole`: all of these lanes have features, and as many as they have room for.
    """

    pass_: Pass
    dtype: torch.dtype
    lanes_log: int
    is_whole: bool

    @property
    def elements(self) -> int:
        """Features of a lane: 16 bytes, or fewer with a map, which a lane holds for all of its own."""
        return 4 if self.size else 16 // self.dtype.itemsize

    @property
    def size(self) -> int:
        """The numbers of an edge behind the map, or 0."""
        return max(self.pass_.sizes, default=0)

    def count(self, *kinds: str) -> int:
        """Return the number of inputs of some kinds."""
        return sum(kind in kinds for kind in self.pass_.inputs)

    def outputs(self, *kinds: str) -> int:
        """Return the number of outputs of some kinds."""
        return sum(kind in kinds for kind, _ in self.pass_.outputs)

    @property
    def is_persistent(self) -> bool:
        """Whether warps add up over all their edges, so that there should be few of them."""
        return self.outputs("vector", "mapped_weight") > 0

    def ring(self) -> tuple[int, int, int]:
        """Return the edges of a lane in a step, the steps on their way, and bytes of shared memory."""
        wide = self.elements // 4
        vectors = 2 if self.elements * self.dtype.itemsize == 16 else 1  # in 8 bytes
        vectors *= self.count("gathered", "edge")
        vectors += 2 * wide * self.count("gathered_winner", "gathered_wide")
        of_edge = 4 * (-(-self.size // 4) * 4 + self.count("gathered_number", "edge_number"))
        has_ids = self.size or self.count("edge", "edge_number", "gathered_winner", "row_winner")
        has_ids = has_ids or self.outputs("edge", "edge_number", "mapped_edge")
        for batch, stages in ((4, 3), (4, 2), (2, 3), (2, 2), (1, 2)):
            slots = batch << (5 - self.lanes_log)
            stage = -(-(256 * vectors * batch + of_edge * slots) // 16) * 16
            ids = 1 << ((stages - 1) * slots + 31).bit_length() if has_ids else 0
            ring_bytes = _WARPS * (stages * stage + 4 * (32 + ids + 64))
            if ring_bytes <= _RING_BYTES:
                break
        if ring_bytes > _MOST_RING_BYTES:
            bad_value(
                "message", f"has {len(self.pass_.inputs)} inputs; accepted: about 20 tensors of features"
            )
        return batch, stages, ring_bytes

    def resident_blocks(self) -> int:
        """Return the blocks that a multiprocessor should hold, by an estimate of the registers."""
        weights = self.size * (1 + self.outputs("mapped_weight"))
        arrays = len(self.pass_.inputs) + 2 * len(self.pass_.outputs) + self.outputs("max", "min") + weights
        arrays += self.count("gathered_winner", "row_winner")
        return min(6, 1 + 512 // (48 + self.elements * arrays))

    @property
    def group(self) -> int:
        """The edges of the rows that a warp takes one after another."""
        if self.is_persistent:
            return _PERSISTENT_GROUP
        return _LARGE_GROUP if self.size or self.elements == 8 else _GROUP

    def addition(self) -> tuple[int, int]:
        """Return the only step that reads what is mapped and adds it to an input, and that input, or -1.

        The kernel then adds the products with the map to the input, one instruction less for each feature.
        """
        pass_, mapped = self.pass_, self.pass_.inputs.index("mapped") if self.size else -1
        reads = [i for i, step in enumerate(pass_.steps) if mapped in step.values]
        if len(reads) != 1 or any(value == mapped for _, value in pass_.outputs):
            return -1, -1
        step = pass_.steps[reads[0]]
        others = [v for v in step.values if v != mapped]
        if step.operation != "add" or len(others) != 1 or others[0] >= len(pass_.inputs):
            return -1, -1
        return reads[0], others[0]

    def text(self) -> str:
        """Return the structure Message that native/cuda/kernels/edges/edge_rows.cuh takes."""
        batch, stages, ring_bytes = self.ring()
        pass_, (added, addend) = self.pass_, self.addition()
        constants = {
            "int kElements": self.elements, "bool kIs16Bits": int(self.dtype.itemsize == 2),
            "bool kIsHalf": int(self.dtype == torch.float16), "int kLanesLog": self.lanes_log,
            "bool kIsWhole": int(self.is_whole),
            "int kBatch": batch, "int kStages": stages, "int kBlocks": self.resident_blocks(),
            "int kRingBytes": ring_bytes, "int kInputs": len(pass_.inputs), "int kSize": self.size,
            "int kOutputs": len(pass_.outputs), "int kAddend": addend,
        }  # fmt: skip
        lines = [f"  static constexpr {name} = {value};" for name, value in constants.items()]
        for name, of, kinds, known in (
            ("input", "EdgeInput", list(pass_.inputs), INPUTS),
            ("output", "EdgeOutput", [kind for kind, _ in pass_.outputs], OUTPUTS),
        ):
            codes = ", ".join(f"{of}({known.index(kind)})" for kind in kinds)
            lines += [
                f"  static constexpr GNNSPARSE_EDGE_HD {of} {name}(int i) {{",
                f"    constexpr {of} kinds[] = {{{codes}}};",
                "    return kinds[i];",
                "  }",
            ]
        lines += ["  static __device__ __forceinline__ void run(const float* in, float* out) {"]
        count = len(pass_.inputs)
        names = [f"in[{i}]" for i in range(count)] + [f"v{count + i}" for i in range(len(pass_.steps))]
        if added >= 0:
            names[count + added] = names[pass_.inputs.index("mapped")]
        lines += [
            f"    const float v{count + i} = {_expression(step, [names[v] for v in step.values])};"
            for i, step in enumerate(pass_.steps)
            if i != added
        ]
        lines += [f"    out[{k}] = {names[value]};" for k, (_, value) in enumerate(pass_.outputs)]
        return "\n".join(["struct Message {", *lines, "  }", "};", ""])


@functools.lru_cache(1024)
def variant_of(pass_: Pass, dtype: torch.dtype, width: int) -> Variant:
    """Return the variant of a pass in which features of a width are computed."""
    elements = Variant(pass_, dtype, 5, False).elements
    lanes_log = max(2, min(5, (-(-width // elements) - 1).bit_length()))
    return Variant(pass_, dtype, lanes_log, width % (elements << lanes_log) == 0)


def _expression(step: Step, values: list[str]) -> str:
    if step.operation == "const":
        bits = struct.unpack("<I", struct.pack("<f", _rounded(step.constant)))[0]
        return f"__uint_as_float(0x{bits:08x}u)"
    return _FUNCTIONS[step.operation].format(*values)


def _rounded(number: float) -> float:
    """Return a number as float32; one that is too large is infinite."""
    return float(torch.tensor(number, dtype=torch.float64, device="cpu").float())


def program_text(message: str) -> str:
    """Return the program that NVRTC compiles for a message: kernels whose names are the same for all."""
    kernels = "".join(
        f'extern "C" __global__ void __launch_bounds__(32 * kEdgeWarps{blocks}) gnnsparse_edge_{name}(\n'
        f"    const __grid_constant__ EdgeLaunch p) {{\n  EdgeRows<Message>(p).{run}();\n}}\n"
        for name, run, blocks in (("rows", "run", ", Message::kBlocks"), ("cuts", "run_cut", ""))
    )
    include = '#include "kernels/edges/edge_rows.cuh"\nnamespace gnnsparse::cuda {\n'
    return f"{include}{message}{kernels}}}  // namespace gnnsparse::cuda\n"


# NVRTC.


@functools.cache
def _headers() -> dict[str, str]:
    """Return the texts of the headers by their names."""
    beside = Path(_native.__file__).parent / "_include"
    native = Path(__file__).parents[3] / "native"
    folders = (beside,) if beside.is_dir() else (native / "include", native / "cuda")
    found = {name: next(f / name for f in folders if (f / name).exists()).read_text() for name in _HEADERS}
    # NVRTC has no standard library.
    types = "".join(
        f"typedef {of} int{bits}_t;\ntypedef unsigned {of} uint{bits}_t;\n"
        for bits, of in ((8, "char"), (16, "short"), (32, "int"), (64, "long long"))
    )
    return {**found, "cstdint": f"#pragma once\n{types}typedef unsigned long long uintptr_t;\n"}


def _libraries() -> Iterator[str]:
    """Yield the names of the libraries that may be NVRTC, those of torch's wheels first."""
    folders: list[Path] = []
    if (spec := importlib.util.find_spec("nvidia")) is not None:
        for place in spec.submodule_search_locations or ():
            folders += sorted(Path(place).glob("cu*/lib"), reverse=True)
    folders += [Path(torch.__file__).parent / "lib"]
    for name in ("CUDA_HOME", "CUDA_PATH"):
        if root := os.environ.get(name):
            folders += [Path(root) / "lib64", Path(root) / "lib"]
    folders += [Path("/usr/local/cuda/lib64")]
    major = (torch.version.cuda or "").split(".")[0]
    for pattern in (f"libnvrtc*.so.{major}*", "libnvrtc*.so*"):
        for folder in folders:
            for found in sorted(folder.glob(pattern)):
                if "builtins" not in found.name and ".alt." not in found.name:
                    yield str(found)
    if (name_ := ctypes.util.find_library("nvrtc")) is not None:
        yield name_


class Nvrtc:
    """NVRTC's functions, of a library.

    Attributes:
        version: of the library.
    """

    def __init__(self, name: str) -> None:
        # It asks for its other library by name, which is found once it is loaded.
        for other in Path(name).parent.glob("libnvrtc-builtins.so.*") if "/" in name else ():
            ctypes.CDLL(str(other))
        self._library = ctypes.CDLL(name)
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        self.version = major.value, minor.value

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._library, name)(*arguments)
        if code:
            self._library.nvrtcGetErrorString.restype = ctypes.c_char_p
            raise RuntimeError(f"{name}: {self._library.nvrtcGetErrorString(code).decode()}")

    def _read(self, what: str, program: ctypes.c_void_p) -> bytes:
        size = ctypes.c_size_t()
        self._call(f"nvrtcGet{what}Size", program, ctypes.byref(size))
        text = ctypes.create_string_buffer(size.value)
        self._call(f"nvrtcGet{what}", program, text)
        return text.raw

    def compile(self, text: str, architecture: str) -> bytes:
        """Return the machine code of a program; raises RuntimeError with the compiler's messages."""
        headers = _headers()
        strings = ctypes.c_char_p * len(headers)
        program = ctypes.c_void_p()
        self._call(
            "nvrtcCreateProgram", ctypes.byref(program), text.encode(), b"edge_rows.cu", len(headers),
            strings(*(h.encode() for h in headers.values())), strings(*(n.encode() for n in headers)),
        )  # fmt: skip
        try:
            flags = [f"--gpu-architecture={architecture}".encode(), *(flag.encode() for flag in _FLAGS)]
            try:
                self._call("nvrtcCompileProgram", program, len(flags), (ctypes.c_char_p * len(flags))(*flags))
            except RuntimeError as error:
                log = self._read("ProgramLog", program).decode(errors="replace").strip("\0")
                raise RuntimeError(f"{error}\n{log}") from None
            return self._read("CUBIN", program)
        finally:
            self._library.nvrtcDestroyProgram(ctypes.byref(program))


@functools.cache
def nvrtc() -> Nvrtc | None:
    """Return the NVRTC of this installation, or None."""
    for name in _libraries():
        try:
            return Nvrtc(name)
        except (OSError, AttributeError, RuntimeError):
            continue
    return None


def compile_program(text: str, capability: tuple[int, int]) -> bytes:
    """Return the machine code of a program for a GPU, from the cache on disk if it is there."""
    compiler = nvrtc()
    assert compiler is not None
    architecture = f"sm_{capability[0]}{capability[1]}"
    parts = (text, *_headers().items(), architecture, compiler.version, _FLAGS, CACHE_VERSION)
    key = hashlib.sha256(repr(parts).encode()).hexdigest()[:32]
    cache = GraphCache(what="the compiled kernel")
    if (cubin := cache.load(key, lambda tensors, _: tensors["cubin"].numpy().tobytes())) is not None:
        return cubin
    cubin = compiler.compile(text, architecture)
    tensor = torch.frombuffer(bytearray(cubin), dtype=torch.uint8)
    cache.store(key, {"cubin": tensor}, {"kind": "edge kernel", "rows": 0, "cols": 0, "edges": 0})
    return cubin


@functools.cache
def available(device: torch.device) -> str | None:
    """Return why passes can't run on a GPU, or None if they can."""
    if device.type != "cuda" or not hasattr(path().native, "EdgeKernel"):
        return "gnnsparse was built without CUDA, or with CUDA older than 12.8"
    if (capability := path().describe(device).capability) < (8, 0):
        return f"the GPU has compute capability {capability[0]}.{capability[1]}; accepted: 8.0 or later"
    return "NVRTC was not found, which comes with torch's CUDA wheels" if nvrtc() is None else None


class _Compiled(NamedTuple):
    """A kernel as it was loaded, and what its launches need to know of its variant."""

    kernel: Any
    is_persistent: bool
    group: int
    resident_blocks: int
    row_features: int  # results of a row with a number for each feature; winners are one too
    row_numbers: int


_kernels: dict[tuple[Variant, tuple[int, int]], _Compiled] = {}
_lock = ForkLock()


def _compiled(variant: Variant, capability: tuple[int, int]) -> _Compiled:
    """Return the loaded kernel of a variant, compiled once."""
    found = _kernels.get((variant, capability))
    if found is not None:
        return found
    with _lock:
        if (variant, capability) not in _kernels:
            pass_ = variant.pass_
            kernel = path().native.EdgeKernel(
                compile_program(program_text(variant.text()), capability),
                [INPUTS.index(kind) for kind in pass_.inputs],
                [OUTPUTS.index(kind) for kind, _ in pass_.outputs],
                variant.size, _STORAGE.index(variant.dtype), variant.lanes_log, variant.ring()[2],
            )  # fmt: skip
            _kernels[variant, capability] = _Compiled(
                kernel, variant.is_persistent, variant.group, variant.resident_blocks(),
                variant.outputs("sum") + 2 * variant.outputs("max", "min"), variant.outputs("row_number"),
            )  # fmt: skip
        return _kernels[variant, capability]


# Launches.


def _aligned(tensor: torch.Tensor, width: int, elements: int) -> torch.Tensor:
    """Return rows that lanes of some `elements` read in vectors of 16 bytes, copied if need be."""
    per_vector = 8 if tensor.dtype.itemsize == 2 else elements
    if tensor.is_contiguous() and width % per_vector == 0 and tensor.data_ptr() % 16 == 0:
        return tensor
    padded = -(-width // per_vector) * per_vector
    stride = tensor.stride(0)
    if (
        tensor.stride(1) == 1 and stride * tensor.dtype.itemsize % 16 == 0 and stride >= padded
        and tensor.data_ptr() % 16 == 0
    ):  # fmt: skip
        if padded == width:
            return tensor
        bytes_left = tensor.untyped_storage().nbytes() // tensor.dtype.itemsize - tensor.storage_offset()
        if bytes_left >= (tensor.shape[0] - 1) * stride + padded:
            return tensor
    wide = tensor.new_zeros(tensor.shape[0], padded)
    wide[:, :width] = tensor
    return wide[:, :width]


def bind(
    pass_: Pass, rows: Rows, width: int, dtype: torch.dtype
) -> Callable[[Sequence[torch.Tensor], Sequence[torch.Tensor]], None]:
    """Return what computes a pass on a GPU, of `width` features in a dtype.

    Arguments and outputs are those of `cpu.bind`, but outputs are contiguous, in the dtype or float32. A pass
    that needs more inputs, outputs or shared memory than there are is a ValueError.
    """
    if len(pass_.inputs) > _MOST_INPUTS or len(pass_.outputs) > _MOST_OUTPUTS:
        bad_value(
            "pass_", f"has {len(pass_.inputs)} inputs and {len(pass_.outputs)} outputs; accepted: at most "
            f"{_MOST_INPUTS} and {_MOST_OUTPUTS}",
        )  # fmt: skip
    kernels, csr, device = rows.kernels, rows.kernels.csr, rows.kernels.csr.device
    variant = variant_of(pass_, dtype, width)
    elements = variant.elements
    chunks = -(-width // elements)
    parts, gpu = -(-chunks // 32), path().describe(device)
    made = _compiled(variant, gpu.capability)
    limit = kernels.row_limit(_ROW_LIMIT)
    work, mean = kernels.row_work(limit), max(1, csr.nnz // max(csr.rows, 1))
    # Small matrices are for many warps, too.
    per_warp = max(1, min(_MOST_ROWS, made.group // mean, csr.rows // (32 * gpu.multiprocessors)))
    items = work.items.shape[0] + -(-csr.rows // per_warp)
    blocks = -(-items // _WARPS)
    if made.is_persistent:
        blocks = min(blocks, made.resident_blocks * gpu.multiprocessors)
    #: Of each tensor whether it has rows of features, and whether these are whole vectors without gaps.
    forms = [
        (False, True) if k not in FEATURES and not k.endswith(("_winner", "_wide"))
        else (True, width % (8 if k in FEATURES and dtype.itemsize == 2 else elements) == 0)
        for k in kinds_of(pass_.inputs)
    ]  # fmt: skip
    #: For each output whether there are winners behind it, and the number of partial sums that are added, of
    #: which a matrix without rows has none; None: it is written as it is.
    outs = [
        (kind in ("max", "min"), _WARPS * blocks if kind in ("vector", "mapped_weight")
         else parts if kind in ("row_number", "edge_number", "mapped_edge") and parts > 1 else None)
        for kind, _ in pass_.outputs
    ]  # fmt: skip
    shapes = {
        "vector": (width,), "mapped_weight": (variant.size, width), "row_number": (csr.rows,),
        "edge_number": (rows.num_edges,), "mapped_edge": (rows.num_edges, variant.size),
    }  # fmt: skip
    partial = [
        ((count, *shapes[kind]), torch.float32)
        for (kind, _), (_, count) in zip(pass_.outputs, outs, strict=True)
        if count is not None
    ]
    sizes = work.partials, made.row_features * chunks * elements + parts * made.row_numbers
    # The last one is for rows that are cut.
    new = tensor_maker(device, [*partial, (sizes, torch.float32)])
    is_padded = isinstance(csr, PaddedCsr)
    place = (
        made.kernel, csr.view, kernels.row_ids, rows.edge_ids, rows.num_edges, work.view, limit, per_warp,
        blocks, width,
    )  # fmt: skip

    def run(arguments: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
        given = [
            tensor if is_whole and tensor.is_contiguous() and tensor.data_ptr() % 16 == 0
            else _aligned(tensor, width, elements) if is_rows else tensor.contiguous()
            for tensor, (is_rows, is_whole) in zip(arguments, forms, strict=True)
        ]  # fmt: skip
        access = path()
        with access.current(device):
            *sums, scratch = new()
            placed: list[torch.Tensor | None] = []
            left, added = iter(outputs), []
            for has_winners, count in outs:
                out = next(left)
                winners = next(left) if has_winners else None
                if count is not None:
                    added.append(out)
                    out = sums[len(added) - 1]
                placed += [out, winners]
            if is_padded:  # edges of padding have no row, which writes their parts
                for part in sums:
                    part.zero_()
            access.native.cuda_edge_rows(*place, given, placed, scratch, access.stream(device))
        for out, part in zip(added, sums, strict=True):
            torch.sum(part, 0, out=out)

    return run
