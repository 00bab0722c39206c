"""The former place of `gnnsparse.patterns`, which pickles of models with patterns name."""

from gnnsparse.patterns.operands import MOST_KEPT, Patterns
from gnnsparse.patterns.read import Named as _Named
from gnnsparse.patterns.read import United as _United

__all__ = ["MOST_KEPT", "Patterns", "_Named", "_United"]
