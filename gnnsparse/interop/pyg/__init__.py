"""PyTorch Geometric (PyG) models on the kernels of this library.

import gnnsparse.interop.pyg

model = gnnsparse.interop.pyg.accelerate(model)
print(gnnsparse.interop.pyg.report(model))
"""

from gnnsparse.data.optional import import_optional

import_optional("torch_geometric.nn", "gnnsparse.interop.pyg")

from gnnsparse.interop.pyg.model import Report, Row, accelerate, backend, report, restore  # noqa: E402
from gnnsparse.interop.pyg.sampling import PygSampler  # noqa: E402

__all__ = ["PygSampler", "Report", "Row", "accelerate", "backend", "report", "restore"]
