"""Data sets, random graphs and readers of matrix files."""

from gnnsparse.data.dataset import NodeDataset
from gnnsparse.data.files import load_matrix
from gnnsparse.data.generators import GENERATED_GRAPHS, BlockModel, graph_like, sample_graph
from gnnsparse.data.load import DATASETS, load_dataset
from gnnsparse.data.storage import DatasetUnavailableError, data_folder

__all__ = [
    "DATASETS",
    "GENERATED_GRAPHS",
    "BlockModel",
    "DatasetUnavailableError",
    "NodeDataset",
    "data_folder",
    "graph_like",
    "load_dataset",
    "load_matrix",
    "sample_graph",
]
