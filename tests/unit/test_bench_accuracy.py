"""`gnnsparse bench accuracy`: its rows against known truths, and kernels planted that are wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from gnnsparse import cli, spmm
from gnnsparse.bench.accuracy import command
from gnnsparse.bench.accuracy.accumulation import accumulation_rows, half_sums
from gnnsparse.bench.accuracy.data import RANGES, make_operands
from gnnsparse.bench.accuracy.operations import OPERATIONS, ROUNDING, judge, operation_rows
from gnnsparse.bench.accuracy.overflow import overflow_rows
from gnnsparse.bench.accuracy.plain import PlainOperations
from gnnsparse.bench.accuracy.report import problems
from gnnsparse.bench.accuracy.scaling import scaling_rows
from gnnsparse.precision import Precision
from tests.helpers import row_of  # noqa: F401
