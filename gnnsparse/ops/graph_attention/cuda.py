from gnnsparse.ops.graph_attention.cpu import backward, forward, weights

__all__ = ["backward", "forward", "weights"]
