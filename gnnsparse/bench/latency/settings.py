"""What `gnnsparse bench latency` measures."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["BACKENDS", "CACHES", "CORA_LIKE", "GRAPH_MODELS", "MODELS", "MODES", "LatencySettings"]

GRAPH_MODELS = ("gcn", "agnn", "gat")
#: The models that are measured.
MODELS = (*GRAPH_MODELS, "transformer")
#: Who runs them.
BACKENDS = ("gnnsparse", "pyg", "pyg-csr", "pyg-compile", "dense")
#: Whether each call is launched from Python, or replayed from a CUDA graph.
MODES = ("eager", "captured")
CACHES = ("warm", "cold")
#: A random graph of Cora's size with random features, which needs no files.
CORA_LIKE = "cora_like"


@dataclass(frozen=True)
class LatencySettings:
    """The options of the command.

    Attributes:
        models, datasets, precisions, backends: every combination of these is measured; the transformer has
            no data set.
        device: "cpu" or "cuda".
        modes: see MODES.
        caches: "warm": calls follow one another; "cold": the last-level cache is flushed before each call.
        layers: number of layers; None: 3 of the models of graphs, 4 of the transformer.
        hidden: features of a hidden layer; None: 128, and 64 for each head of the transformer.
        heads: heads of the GAT and of the transformer.
        batches: numbers of sequences that the transformer is given at a time.
        seq_len: tokens of a sequence.
        sparsity: share of the pairs of tokens that the pattern leaves out.
        vector: rows of a vector of the pattern.
        root: a folder with the files of data sets, or with a folder for each; None: they are downloaded.
        scale: size of generated data sets, as a share of the full one.
        features: features of a node of cora_like and of generated graphs; None: those of the graph that each
            stands for.
        calls: number of timed calls.
        seconds: time that the calls of a row may take; slow ones are called fewer times.
        timeout: seconds that a compiled peer, which runs in a process of its own, may take altogether.
    """

    models: tuple[str, ...] = ("gcn",)
    datasets: tuple[str, ...] = ("cora_like",)
    precisions: tuple[str, ...] = ("fp32",)
    backends: tuple[str, ...] = BACKENDS
    device: str = "cpu"
    modes: tuple[str, ...] = MODES
    caches: tuple[str, ...] = CACHES
    layers: int | None = None
    hidden: int | None = None
    heads: int = 8
    batches: tuple[int, ...] = (1,)
    seq_len: int = 8192
    sparsity: float = 0.95
    vector: int = 8
    root: Path | None = None
    scale: float = 1.0
    features: int | None = None
    calls: int = 200
    seconds: float = 5.0
    timeout: float = 300.0

    def layers_of(self, model: str) -> int:
        """Returns the number of layers of a model."""
        return self.layers or (4 if model == "transformer" else 3)

    def hidden_of(self, model: str) -> int:
        """Returns the features of a hidden layer of a model."""
        return self.hidden or (64 * self.heads if model == "transformer" else 128)
