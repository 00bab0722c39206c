"""Random calls of all that gnnsparse offers in Python, with valid arguments and with senseless ones."""

from tests.fuzz.api.cases import reduce, replay, run

__all__ = ["reduce", "replay", "run"]
