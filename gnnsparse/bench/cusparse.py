"""cuSPARSE called directly: every algorithm for CSR, with its preprocessing and a buffer that is kept.

torch calls cuSPARSE's default algorithm and allocates a buffer in every call, so its times are not the best
that the library can do. The functions are those of NVIDIA's "cuSPARSE Library", chapter "Generic APIs",
called through ctypes in the library that torch has loaded, so that no other package is needed. It stands
alone because it is a binding, which is tested with a stand-in for the library.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch

from gnnsparse.bench.workload import UnavailableError, UnsupportedError, Variant, Workload

#: The algorithms by name, and their numbers in cusparseSpMMAlg_t and cusparseSDDMMAlg_t.
SPMM_ALGORITHMS = {"default": 0, "CSR_ALG1": 4, "CSR_ALG2": 6, "CSR_ALG3": 12}
SDDMM_ALGORITHMS = {"default": 0}

#: Names under which the library can be loaded, if torch or the system has it in its search path.
_NAMES = ("libcusparse.so.13", "libcusparse.so.12", "libcusparse.so.11", "libcusparse.so")
#: cudaDataType_t of each dtype. Products are computed in float32 from each of them.
_TYPES = {torch.float32: 0, torch.float16: 2, torch.bfloat16: 14}
_FLOAT32 = _TYPES[torch.float32]
#: CUSPARSE_OPERATION_NON_TRANSPOSE and _TRANSPOSE, _INDEX_32I, _INDEX_BASE_ZERO and _ORDER_ROW.
_AS_IT_IS, _TRANSPOSED, _INT32, _FROM_ZERO, _BY_ROW = 0, 1, 2, 0, 2
#: CUSPARSE_STATUS_INVALID_VALUE, _ARCH_MISMATCH and _NOT_SUPPORTED: another dtype or algorithm may do.
_REFUSALS = (3, 4, 10)
#: The result of SDDMM before the first call, so large that an element which nothing writes shows. It is not
#: NaN, because cuSPARSE may multiply it by beta = 0.
_UNWRITTEN = 30_000.0


@functools.cache
def load_library() -> ctypes.CDLL:
    """Return the cuSPARSE that torch has loaded, or the system's; else raise UnavailableError."""
    for mode, name in itertools.product((os.RTLD_NOLOAD, ctypes.DEFAULT_MODE), _NAMES):
        try:
            library = ctypes.CDLL(name, mode=mode)
        except OSError:
            continue
        for function in ("cusparseSpMM_preprocess", "cusparseSDDMM_preprocess"):
            if not hasattr(library, function):
                raise UnavailableError(f"libcusparse has no {function}; it is in CUDA 11.7 and newer")
        return library
    raise UnavailableError("found no libcusparse: torch has loaded none, and the system has none")


class _Call:
    """The descriptors of a product, which are destroyed with it, and calls of cuSPARSE with them."""

    def __init__(self, work: Workload, values: torch.Tensor, library: ctypes.CDLL) -> None:
        csr = work.subject.csr
        if csr.nnz >= 2**31:
            raise UnavailableError(f"{csr.nnz} nonzeros do not fit into int32 offsets")
        self.library, self.work, self.values = library, work, values
        self.indptr, self.indices = csr.indptr.int(), csr.indices.contiguous()
        self._tensors: list[torch.Tensor] = []
        self._made: list[tuple[str, ctypes.c_void_p]] = []
        # Not when the process ends: CUDA may have ended by then, and its memory goes with the process.
        weakref.finalize(self, _destroy, self.library, self._made).atexit = False
        self.handle = self._make("cusparseCreate", "cusparseDestroy")
        self.sparse = self._make(
            "cusparseCreateCsr", "cusparseDestroySpMat",
            ctypes.c_int64(csr.rows), ctypes.c_int64(csr.cols), ctypes.c_int64(csr.nnz), _at(self.indptr),
            _at(self.indices), _at(values), _INT32, _INT32, _FROM_ZERO, _TYPES[values.dtype],
        )  # fmt: skip
        self.one, self.zero = ctypes.c_float(1.0), ctypes.c_float(0.0)
        self.buffer: torch.Tensor | None = None

    def _make(self, create: str, destroy: str, *arguments: Any) -> ctypes.c_void_p:
        made = ctypes.c_void_p()
        self.check(create, ctypes.byref(made), *arguments)
        self._made.append((destroy, made))
        return made

    def dense(self, x: torch.Tensor) -> ctypes.c_void_p:
        """Make the descriptor of a contiguous matrix, which is kept."""
        self._tensors.append(x)
        sizes = (ctypes.c_int64(size) for size in (*x.shape, x.shape[1]))
        return self._make(
            "cusparseCreateDnMat", "cusparseDestroyDnMat", *sizes, _at(x), _TYPES[x.dtype], _BY_ROW
        )

    def check(self, function: str, *arguments: Any) -> None:
        """Call a function of cuSPARSE; UnsupportedError: it does not accept the dtype or the algorithm."""
        status = getattr(self.library, function)(*arguments)
        if status == 0:
            return
        name = self.library.cusparseGetErrorName
        name.restype = ctypes.c_char_p
        problem = f"{function}: {name(status).decode()}"
        raise UnsupportedError(problem) if status in _REFUSALS else RuntimeError(problem)

    def prepare(self, function: str, *arguments: Any) -> float:
        """Allocate the buffer, run the preprocessing, and return the milliseconds that both took."""
        torch.cuda.synchronize(self.work.device)
        begin = time.perf_counter()
        size = ctypes.c_size_t()
        self.set_stream()
        self.check(f"{function}_bufferSize", self.handle, *arguments, ctypes.byref(size))
        # cuSPARSE refuses no buffer where it needs none, so there is one in any case.
        self.buffer = torch.empty(max(size.value, 16), dtype=torch.uint8, device=self.work.device)
        self.check(f"{function}_preprocess", self.handle, *arguments, _at(self.buffer))
        torch.cuda.synchronize(self.work.device)
        return 1e3 * (time.perf_counter() - begin)

    def set_stream(self) -> None:
        """Make cuSPARSE queue its work on torch's current stream."""
        stream = torch.cuda.current_stream(self.work.device).cuda_stream
        self.check("cusparseSetStream", self.handle, ctypes.c_void_p(stream))

    def bound(
        self, function: str, arguments: tuple[Any, ...], out: torch.Tensor
    ) -> Callable[[], torch.Tensor]:
        """Return the call to time. Its arguments are converted ahead, and the result is written in place."""
        assert self.buffer is not None
        run, given = getattr(self.library, function), (self.handle, *arguments, _at(self.buffer))

        def call() -> torch.Tensor:
            self.set_stream()  # a capture runs on a stream of its own
            if run(*given):
                self.check(function, *given)  # again, for the name of the error
            return out

        return call


def _at(tensor: torch.Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


def _destroy(library: ctypes.CDLL, made: list[tuple[str, ctypes.c_void_p]]) -> None:
    while made:  # the handle, which was made first, goes last
        name, descriptor = made.pop()
        getattr(library, name)(descriptor)


def cusparse_variants(work: Workload, library: ctypes.CDLL | None = None) -> Iterator[Variant]:
    """Yield cuSPARSE's product by each of its algorithms for CSR, prepared one after the other.

    The weights are an array, sums are float32, and the result is allocated one time, which spares an
    allocation in every call that the other candidates make. `library` is another cuSPARSE than torch's.
    """
    spmm, dense = work.op == "spmm", [x.contiguous() for x in work.dense]
    dtype, device = dense[0].dtype, dense[0].device
    function, algorithms = ("SpMM", SPMM_ALGORITHMS) if spmm else ("SDDMM", SDDMM_ALGORITHMS)
    values = work.subject.explicit_values.to(dtype) if spmm else None

    def make(number: int) -> tuple[Callable[[], torch.Tensor], float]:
        unwritten = float("nan") if spmm else _UNWRITTEN
        out = torch.full(work.output_shape, unwritten, dtype=dtype, device=device)
        call = _Call(work, out if values is None else values, library or load_library())
        operands = [call.dense(x) for x in dense]
        given, result = ([call.sparse, *operands], call.dense(out)) if spmm else (operands, call.sparse)
        arguments = (
            _AS_IT_IS, _AS_IT_IS if spmm else _TRANSPOSED, ctypes.byref(call.one), *given,
            ctypes.byref(call.zero), result, _FLOAT32, number,
        )  # fmt: skip
        ms = call.prepare(f"cusparse{function}", *arguments)
        return call.bound(f"cusparse{function}", arguments, out), ms

    for name, number in algorithms.items():
        yield name, functools.partial(make, number)
