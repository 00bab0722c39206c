import multiprocessing
import os
from types import SimpleNamespace
from unittest import mock

import pytest

from tests.distributed.ranks import Ranks


@pytest.fixture(scope="session", autouse=True)
def forked():
    """Processes of ranks, here and in the benchmark, are forked from one that has imported what they need."""
    context = multiprocessing.get_context("forkserver")
    native = ["tests.native_build"] if "GNNSPARSE_TEST_NATIVE" in os.environ else []  # before gnnsparse
    tests = ["tests.distributed.test_products", "tests.distributed.test_trainings"]
    context.set_forkserver_preload([*native, "benchmarks.scaling", *tests])
    with mock.patch("benchmarks.scaling_ranks.mp", SimpleNamespace(get_context=lambda _: context)):
        yield


@pytest.fixture(scope="session")
def ranks():
    """Processes with process groups of two to five ranks, which all tests of this folder share."""
    found = Ranks([2, 3, 4, 5], "cpu")
    yield found
    found.close()
