"""The models that train.py can train, each of which is registered in its file."""

# isort: off
# Imported in the order in which messages list them. `discover` imports the files of other models.
from models.gcn import GCN
from models.agnn import AGNN
from models.graph_transformer import GraphTransformer
from models.transformer import Transformer
from models.gat import GAT, GATv2
from models.graphsage import GraphSAGE
from models.gin import GIN
from models.gps import GPS
from models.exphormer import Exphormer
from models.gine import GINE
from models.gatedgcn import GatedGCN
from models.pna import PNA
from models.meshgraphnet import MeshGraphNet
from models.rgcn import RGCN
from models.hgt import HGT
# isort: on

from gnnsparse.registry import discover
from models.registry import MODELS, Model, register_model

__all__ = [
    "AGNN", "GAT", "GCN", "GIN", "GINE", "GPS", "HGT", "MODELS", "PNA", "RGCN", "Exphormer", "GATv2",
    "GatedGCN", "GraphSAGE", "GraphTransformer", "MeshGraphNet", "Model", "Transformer", "register_model",
]  # fmt: skip

discover(__name__)
