"""Attention over sparse patterns for models of torch and of Hugging Face's transformers, weights untouched.

    model = gnnsparse.interop.transformers.sparsify(model, pattern={"name": "window", "radius": 128})

The package transformers is not needed for models that are torch's alone.
"""

from gnnsparse.interop.models import ReportRow
from gnnsparse.interop.transformers.layers import Report, report, restore, sparsify

__all__ = ["Report", "ReportRow", "report", "restore", "sparsify"]
