"""Data sets, random graphs and readers of matrix files."""

# isort: off
# Imported in the order in which messages list their data sets. `discover` imports the other files.
from gnnsparse.data import generated, published  # noqa: F401
# isort: on

from gnnsparse.data.catalog import (
    CATALOG,
    DATASETS,
    SEQUENCE_DATASETS,
    DatasetEntry,
    load_dataset,
    load_sequences,
    register_dataset,
)
from gnnsparse.data.custom.load import (
    CUSTOM_FORMATS,
    dataset_of_edges,
    dataset_of_graphs,
    dataset_of_hetero,
    dataset_of_pyg,
    load_custom,
)
from gnnsparse.data.datasets import (
    EdgeDataset,
    GraphDataset,
    LinkDataset,
    NodeDataset,
    SequenceDataset,
    SequencePart,
)
from gnnsparse.data.generators import GENERATED_GRAPHS, BlockModel, graph_like, sample_graph
from gnnsparse.data.graph_batches import BlockBatch, BlockBatches, block_diagonal
from gnnsparse.data.large.build import EdgeStream, build_graph, edges_like, generate_graph
from gnnsparse.data.large.folder import (
    DamagedGraphError,
    NoSpaceError,
    StoredGraph,
    graph_ids,
    graph_info,
    open_graph,
)
from gnnsparse.data.large.tables import build_graph_of_tables
from gnnsparse.data.long_range_arena import LISTOPS_TOKENS, load_listops, load_text_bytes
from gnnsparse.data.matrix_files import load_matrix
from gnnsparse.data.sources import DatasetUnavailableError, data_folder
from gnnsparse.data.typed import TypedLinkDataset, TypedNodeDataset
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
    "EdgeDataset",
    "EdgeStream",
    "GraphDataset",
    "LinkDataset",
    "NoSpaceError",
    "NodeDataset",
    "SequenceDataset",
    "SequencePart",
    "StoredGraph",
    "TypedLinkDataset",
    "TypedNodeDataset",
    "block_diagonal",
    "build_graph",
    "build_graph_of_tables",
    "data_folder",
    "dataset_of_edges",
    "dataset_of_graphs",
    "dataset_of_hetero",
    "dataset_of_pyg",
    "edges_like",
    "generate_graph",
    "graph_ids",
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
