"""Policies of the window kernel: which can exist, whose they are, and their plain form."""

from __future__ import annotations

import itertools
import json

import pytest

from gnnsparse.formats import PRESETS, WindowPolicy
from gnnsparse.formats.policy import GRIDS, STAGINGS, X_LOADS, policy_changes
from gnnsparse.plan import Plan, Problem, WindowPlan, choose_plan, plan_from_plain
from gnnsparse.precision import Precision
from gnnsparse.runtime.device import Device
from gnnsparse.runtime.serialization import to_plain
from tests.gpu_paths import H200

FP16, TF32, BF16 = Precision.FP16, Precision.TF32, Precision.BF16


@pytest.mark.parametrize(
    ("switches", "why"),
    [
        ({}, ""),
        ({"swapped": False}, "windows have 8 rows"),
        ({"k": 4}, "no mma of depth 4 in fp16, which has 16 or 8"),
        ({"k": 8}, ""),
        ({"x_load": "plain"}, "no registers to shuffle with plain loads"),
        ({"x_load": "coalesced", "shuffle": False}, ""),
        ({"shuffle": False}, "vector loads of X need the register shuffle"),
        ({"shuffle": False, "stage_a": "single", "stage_x": True}, ""),
        ({"stage_x": True}, "stage_x needs stage_a"),
        ({"x_load": "plain", "shuffle": False, "stage_a": "single", "stage_x": True}, "no plain loads of X"),
    ],
)
def test_why_a_combination_can_not_exist(switches: dict[str, object], why: str) -> None:
    assert WindowPolicy(**switches).why_not(FP16, "dense", 8).startswith(why)  # type: ignore[arg-type]
    assert bool(WindowPolicy(**switches).why_not(FP16, "dense", 8)) == bool(why)  # type: ignore[arg-type]


def test_precisions_and_encodings() -> None:
    staged = WindowPolicy(stage_a="double")
    assert WindowPolicy().why_not(Precision.FP32, "dense", 8) == "no Tensor Core product of fp32"
    assert not WindowPolicy().why_not(BF16, "bitmap", 8)
    assert "bf16 has the default policy alone" in staged.why_not(BF16, "dense", 8)
    assert "encoding bitmap" in staged.why_not(FP16, "bitmap", 16)
    assert not WindowPolicy(swapped=False, k=4).why_not(TF32, "dense", 16)
    assert WindowPolicy(k=16).is_default(FP16)
    assert not WindowPolicy(k=8).is_default(FP16)
    assert WindowPolicy(k=8).is_default(TF32)


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("swapped", 1, TypeError), ("shuffle", "yes", TypeError), ("stage_x", None, TypeError),
        ("x_load", "wide", ValueError), ("stage_a", True, ValueError), ("grid", "2d", ValueError),
        ("coarsening", 3, ValueError), ("coarsening", True, ValueError), ("k", 32, ValueError),
    ],
)  # fmt: skip
def test_bad_switches_are_refused_by_name(name: str, value: object, error: type[Exception]) -> None:
    with pytest.raises(error, match=name):
        WindowPolicy(**{name: value})  # type: ignore[arg-type]


def test_presets_have_the_policies_of_their_papers() -> None:
    flash = PRESETS["me-bcrs"]
    assert [flash.policy_for(p).depth(p) for p in (FP16, TF32)] == [8, 4]
    assert flash.policy_for(FP16).x_load == "coalesced"
    sspmm = PRESETS["cvse"].policy_for(FP16)
    assert (sspmm.x_load, sspmm.shuffle, sspmm.stage_a, sspmm.stage_x) == ("vector", True, "double", False)
    tiled = PRESETS["tiled-csr"].policy_for(TF32)
    assert (tiled.stage_a, tiled.stage_x, tiled.grid) == ("single", False, "3d")
    dense = [name for name in PRESETS if PRESETS[name].spec.encoding == "dense"]
    for name in dense:  # where a paper has no kernel, the project's own one runs
        assert PRESETS[name].policy_for(BF16).is_default(BF16)
        assert not PRESETS[name].policy_for(FP16).why_not(FP16, PRESETS[name].spec.encoding, 8)


def test_plans_of_a_format_have_its_policy() -> None:
    problem = Problem("spmm", H200, FP16, 1000, 1000, 9000, 64, "cvse", 3000)
    assert choose_plan(problem).policy == PRESETS["cvse"].policy  # type: ignore[attr-defined]
    turing = Device("cuda", (7, 5), 40, 2**33, "Tesla T4", 4 * 2**20)
    old = choose_plan(Problem("spmm", turing, FP16, 1000, 1000, 9000, 64, "cvse", 3000))
    assert old.policy == WindowPolicy()  # type: ignore[attr-defined]


@pytest.mark.parametrize("k", [None, 8])
def test_plain_form(k: int | None) -> None:
    plan = Plan("window", tile_limit=7, policy=WindowPolicy(k=k, stage_a="single", grid="3d"))
    assert isinstance(plan, WindowPlan)
    content = json.loads(json.dumps({"kernel": plan.kernel, **to_plain(plan)}))
    assert plan_from_plain(content) == plan
    for name, value in (("k", 5), ("k", "8"), ("grid", "2d"), ("coarsening", 0), ("swapped", 1)):
        assert plan_from_plain({**content, "policy": {**content["policy"], name: value}}) is None


@pytest.mark.parametrize("precision", [FP16, TF32])
@pytest.mark.parametrize("window", [8, 16])
def test_changes_reach_every_switch_and_can_exist(precision: Precision, window: int) -> None:
    switches = itertools.product((True, False), X_LOADS, (True, False), STAGINGS, (True, False), GRIDS)
    every = [WindowPolicy(s, None, x, r, a, staged, grid=grid) for s, x, r, a, staged, grid in switches]
    able = [policy for policy in every if not policy.why_not(precision, "dense", window)]
    assert able
    for policy in able:
        changes = policy_changes(policy, precision, window)
        expected = {"k", "x_load", "shuffle", "stage_a", "stage_x", "coarsening", "grid"}
        expected |= {"swapped"} if window == 16 else set()
        assert {name.split("=")[0] for name in changes} == expected
        for name, changed in changes.items():
            assert not changed.why_not(precision, "dense", window)
            switch, value = name.split("=")
            assert str(changed.depth(precision) if switch == "k" else getattr(changed, switch)) == value
