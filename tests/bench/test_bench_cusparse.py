"""cuSPARSE called directly, and peers with several variants: which one is measured, and what is told."""

from __future__ import annotations

import ctypes
import gc
import os
import time
import types
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from rich.console import Console

from gnnsparse.bench import cusparse
from gnnsparse.bench.kernels_command import as_json, print_report
from gnnsparse.bench.workload import (
    PEER_FACTOR,
    Reference,
    Sample,
    UnavailableError,
    UnsupportedError,
    Variant,
    Workload,
    make_subject,
)
from gnnsparse.precision import Precision
from gnnsparse.testing import random_graph
from tests.bench.runs import run_with


def exact(work: Workload) -> torch.Tensor:
    csr = work.subject.csr
    matrix = torch.sparse_csr_tensor(
        csr.indptr, csr.indices, work.subject.explicit_values, (csr.rows, csr.cols)
    )
    return torch.sparse.mm(matrix, work.dense[0].float()).to(work.dense[0].dtype)


def ready(call: Callable[[], torch.Tensor], ms: float = 1.0) -> Any:
    return lambda: (call, ms)


def test_the_fastest_right_variant_is_the_peer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def bind(work: Workload) -> list[Variant]:
        result = exact(work)

        def late(seconds: float) -> Callable[[], torch.Tensor]:
            return lambda: (time.sleep(seconds), result)[1]

        refused = mock.Mock(side_effect=UnsupportedError("not in this precision"))
        return [
            ("refused", refused), ("slow", ready(late(0.02), 5.0)), ("quick", ready(late(0.002), 7.0)),
            ("wrong", ready(lambda: result * 1.5)),
        ]  # fmt: skip

    bench = run_with(monkeypatch, "several", bind)
    (found,) = (r for r in bench.rows if r["kernel"] == "several")
    assert (found["variant"], found["preprocess_ms"], found["ok"]) == ("quick", 7.0, True)
    tried = [("slow", True), ("quick", True), ("wrong", False)]
    assert [(v["name"], v["ok"]) for v in found["variants"]] == tried
    assert found["variants"][0]["ms"] > found["variants"][1]["ms"] >= 2.0
    assert all(s["name"] != "several" for s in bench.skipped)
    print_report(bench, Console(width=250))
    assert "several (quick)" in capsys.readouterr().out
    assert as_json(bench)["noise"]["rows"] == len(bench.rows)


def test_where_every_variant_is_wrong_it_is_told_and_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = run_with(monkeypatch, "several", lambda work: [
        (name, ready(lambda: torch.zeros(work.output_shape))) for name in ("a", "b")
    ])  # fmt: skip
    (found,) = (r for r in bench.rows if r["kernel"] == "several")
    assert not found["ok"]
    assert all(lost["best"] != "several fp32" for lost in as_json(bench)["lost"])


def test_what_a_precision_lacks_is_measured_in_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    def bind(work: Workload) -> list[Variant]:
        refused = mock.Mock(side_effect=UnsupportedError("fp32 only"))
        return [("only", ready(lambda: exact(work)) if work.precision is Precision.FP32 else refused)]

    bench = run_with(monkeypatch, "several", bind, "fp16", "bf16", "fp32")
    assert [r["precision"] for r in bench.rows if r["kernel"] == "several"] == ["fp32"]
    skipped = [(s["precision"], s["reason"]) for s in bench.skipped if s["name"] == "several"]
    assert skipped == [("fp16", "fp32 only"), ("bf16", "fp32 only")]


def test_without_cusparse_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = mock.Mock(side_effect=OSError)
    monkeypatch.setattr(ctypes, "CDLL", missing)
    cusparse.load_library.cache_clear()
    with pytest.raises(UnavailableError, match="found no libcusparse"):
        cusparse.load_library()
    # The library that torch has loaded comes first.
    modes, count = [call.kwargs["mode"] for call in missing.call_args_list], len(cusparse._NAMES)
    assert modes[:count] == [os.RTLD_NOLOAD] * count
    assert os.RTLD_NOLOAD not in modes[count:]
    monkeypatch.setattr(ctypes, "CDLL", lambda name, mode: object())
    with pytest.raises(UnavailableError, match="no cusparseSpMM_preprocess"):
        cusparse.load_library()
    cusparse.load_library.cache_clear()


class FakeLibrary(mock.Mock):
    """A stand-in for cuSPARSE, whose functions return 0 unless another status is set for them."""

    def _get_child_mock(self, **options: Any) -> mock.Mock:
        return mock.Mock(**options, return_value=0)

    @property
    def names(self) -> list[str]:
        return [name.removeprefix("cusparse") for name, _, _ in self.mock_calls]


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> FakeLibrary:
    fake = FakeLibrary()
    fake.cusparseGetErrorName = lambda status: f"CUSPARSE_STATUS_{status}".encode()
    monkeypatch.setattr(cusparse, "load_library", lambda: fake)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: types.SimpleNamespace(cuda_stream=7))
    return fake


def small_work(op: str) -> Workload:
    graph = random_graph(20, 30, 0.2)
    return Workload(make_subject("random", graph, "random"), op, Precision.FP32, 8)


@pytest.mark.parametrize("op", ["spmm", "sddmm"])
def test_a_call_has_its_preprocessing_and_keeps_its_buffer(op: str, library: FakeLibrary) -> None:
    work, product = small_work(op), "SpMM" if op == "spmm" else "SDDMM"
    call, _ = next(cusparse.cusparse_variants(work))[1]()
    assert library.names == [
        "Create", "CreateCsr", "CreateDnMat", "CreateDnMat", "SetStream", f"{product}_bufferSize",
        f"{product}_preprocess",
    ]  # fmt: skip
    created = [arguments[1:4] for name, arguments, _ in library.mock_calls if "Create" in name]
    shapes = [tuple(a.value for a in arguments) for arguments in created]
    dense = [(30, 8, 8), (20, 8, 8)] if op == "spmm" else [(20, 8, 8), (30, 8, 8)]
    assert shapes[1:] == [(20, 30, work.subject.csr.nnz), *dense]
    prepared = library.mock_calls[-1].args
    library.reset_mock()
    out = call()
    assert out.shape == work.output_shape
    assert not (out.isfinite() & (out < 1e4)).any()  # nothing has written it
    assert library.names == ["SetStream", product]
    given = library.mock_calls[-1].args
    assert given[-1].value == prepared[-1].value  # the buffer of the preprocessing
    assert given[:-1] == prepared[:-1]
    library.reset_mock()
    del call, out, prepared, given
    gc.collect()
    assert sorted(library.names) == ["Destroy", "DestroyDnMat", "DestroyDnMat", "DestroySpMat"]
    assert library.names[-1] == "Destroy"


def test_what_cusparse_refuses_or_fails_at(library: FakeLibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    work = small_work("spmm")
    _, make = next(cusparse.cusparse_variants(work))
    call, _ = make()
    library.cusparseSpMM.return_value = 6
    with pytest.raises(RuntimeError, match="cusparseSpMM: CUSPARSE_STATUS_6"):
        call()
    library.cusparseSpMM_bufferSize.return_value = 10
    with pytest.raises(UnsupportedError, match="cusparseSpMM_bufferSize: CUSPARSE_STATUS_10"):
        make()
    monkeypatch.setattr(type(work.subject.csr), "nnz", 2**31)  # offsets beyond 32 bits
    with pytest.raises(UnavailableError, match="int32"):
        next(cusparse.cusparse_variants(work))[1]()


@pytest.mark.gpu
@pytest.mark.parametrize("op", ["spmm", "sddmm"])
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("kind", ["gcn", "random"])
def test_every_algorithm_is_right_or_refused(op: str, precision: str, kind: str) -> None:
    graph = random_graph(700, 700, 0.02, hubs=2, empty_rows=0.1).to("cuda")
    work = Workload(make_subject("random", graph, kind), op, Precision(precision), 41)
    reference, right = Reference(work, Sample.of(work.subject)), []
    for name, make in cusparse.cusparse_variants(work):
        try:
            call, ms = make()
        except UnsupportedError:
            assert precision != "fp32", name
            continue
        assert ms > 0
        for _ in range(2):
            right.append(reference.judge(call(), PEER_FACTOR))
    assert all(verdict.ok for verdict in right), right
    assert right or (op, precision) != ("spmm", "fp16")


@pytest.mark.gpu
def test_an_algorithm_that_does_not_exist_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = random_graph(70, 70, 0.2).to("cuda")
    work = Workload(make_subject("random", graph, "none"), "spmm", Precision.FP32, 8)
    monkeypatch.setattr(cusparse, "SPMM_ALGORITHMS", {"magic": 99})
    ((_, make),) = cusparse.cusparse_variants(work)
    with pytest.raises((UnsupportedError, RuntimeError), match=r"cusparseSpMM\w*: CUSPARSE_STATUS"):
        make()
