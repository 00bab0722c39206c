"""Data sets, random graphs and readers of matrix files."""

# isort: off
# Imported in the order in which messages list their data sets. `discover` imports the other files.
from gnnsparse.data import digits, published, synthetic  # noqa: F401
# isort: on

from gnnsparse.data.blocks import BlockBatch, BlockBatches, block_diagonal
from gnnsparse.data.custom import CUSTOM_FORMATS, dataset_of_pyg, load_custom
from gnnsparse.data.dataset import NodeDataset
from gnnsparse.data.files import load_matrix
from gnnsparse.data.generators import GENERATED_GRAPHS, BlockModel, graph_like, sample_graph
from gnnsparse.data.graphs import GraphDataset
from gnnsparse.data.large import (
    DamagedGraphError,
    EdgeStream,
    NoSpaceError,
    StoredGraph,
    build_graph,
    edges_like,
    generate_graph,
    graph_info,
    open_graph,
)
from gnnsparse.data.links import LinkDataset
from gnnsparse.data.listops import LISTOPS_TOKENS, evaluate_listops, load_listops
from gnnsparse.data.load import DATASETS, SEQUENCE_DATASETS, load_dataset, load_sequences
from gnnsparse.data.registry import CATALOG, DatasetEntry, register_dataset
from gnnsparse.data.sequences import SequenceDataset, SequencePart
from gnnsparse.data.storage import DatasetUnavailableError, data_folder
from gnnsparse.data.text import load_text_bytes
from gnnsparse.registry import discover

__all__ = [
    "CATALOG",
    "CUSTOM_FORMATS",
    "DATASETS",
    "GENERATED_GRAPHS",
    "LISTOPS_TOKENS",
    "SEQUENCE_DATASETS",
    "BlockBatch",
    "BlockBatches",
    "BlockModel",
    "DamagedGraphError",
    "DatasetEntry",
    "DatasetUnavailableError",
    "EdgeStream",
    "GraphDataset",
    "LinkDataset",
    "NoSpaceError",
    "NodeDataset",
    "SequenceDataset",
    "SequencePart",
    "StoredGraph",
    "block_diagonal",
    "build_graph",
    "data_folder",
    "dataset_of_pyg",
    "edges_like",
    "evaluate_listops",
    "generate_graph",
    "graph_info",
    "graph_like",
    "load_custom",
    "load_dataset",
    "load_listops",
    "load_matrix",
    "load_sequences",
    "load_text_bytes",
    "open_graph",
    "register_dataset",
    "sample_graph",
]

discover(__name__)
