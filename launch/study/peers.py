"""The peers of a study: libraries whose layers train the same models in fp32."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass

from gnnsparse.errors import bad_value

__all__ = ["PEERS", "Peer", "check_peers", "peer_problem"]


@dataclass(frozen=True)
class Peer:
    """Another library that trains the models; launch.study.peer_layers has its layers.

    Attributes:
        title: its name in tables.
        models: the models that it has layers for.
        package: the package that it needs.
        on_cpu: whether it always runs on the CPU.
    """

    title: str
    models: tuple[str, ...]
    package: str
    on_cpu: bool = False


PEERS = {
    "pyg": Peer("PyG", ("gcn", "agnn", "gat", "gatv2", "graphsage", "gin"), "torch_geometric"),
    # The releases on PyPI have no CUDA kernels for a current torch.
    "dgl": Peer("DGL", ("gcn", "agnn", "gat"), "dgl", on_cpu=True),
}


def peer_problem(name: str) -> str | None:
    """Returns why a peer can't run here, or None."""
    peer = PEERS[name]
    if importlib.util.find_spec(peer.package) is None:
        return f"{peer.title} is not installed"
    if name == "dgl":
        from gnnsparse.interop.dgl import import_dgl

        try:
            import_dgl()
        except ImportError as error:
            return f"DGL can't be imported: {' '.join(str(error).split())}"
    return None


def check_peers(peers: Sequence[str], models: Sequence[str]) -> None:
    """Raises a ValueError if a peer has no layers for one of the models."""
    for name in peers:
        for model in models:
            if model not in PEERS[name].models:
                accepted = ", ".join(PEERS[name].models)
                bad_value("peers", f"got {name!r} for the model {model}; accepted with {name}: {accepted}")
