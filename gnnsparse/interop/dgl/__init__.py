"""DGL's graphs and models on our kernels. DGL need not be installed to import this package."""

from gnnsparse.interop.dgl.graphs import from_dgl, import_dgl
from gnnsparse.interop.dgl.layers import Report, accelerate, report, restore
from gnnsparse.interop.models import ReportRow

__all__ = ["Report", "ReportRow", "accelerate", "from_dgl", "import_dgl", "report", "restore"]
