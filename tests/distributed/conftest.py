import pytest

from tests.distributed.ranks import Ranks


@pytest.fixture(scope="session")
def ranks():
    """Processes with process groups of two and three ranks, which all tests of this folder share."""
    found = Ranks([2, 3], "cpu")
    yield found
    found.close()
