"""The Transformer encoder with attention over a sparse pattern, with the interface of torch's encoder."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from gnnsparse.errors import bad_type, check_choice, check_flag, check_integer, check_share
from gnnsparse.nn.dropout import dropout as drop
from gnnsparse.nn.inputs import MOST_FEATURES, check_features
from gnnsparse.nn.quick import activated_linear
from gnnsparse.nn.sparse_attention import SparseAttention, edge_bias
from gnnsparse.operand import SparseOperand

__all__ = ["ACTIVATIONS", "TransformerEncoder", "TransformerEncoderLayer"]

Activation = Callable[[torch.Tensor], torch.Tensor]

#: The functions that `activation` accepts by name.
ACTIVATIONS: dict[str, Activation] = {"relu": F.relu, "gelu": F.gelu}


def _activation(given: Any) -> Activation:
    if callable(given):
        return given
    return ACTIVATIONS[check_choice("activation", given, tuple(ACTIVATIONS))]


class TransformerEncoderLayer(torch.nn.Module):
    """Self-attention over a pattern and a feed-forward network (Vaswani et al. 2017).

    Arguments, parameters and `state_dict` are those of torch.nn.TransformerEncoderLayer, whose weights can be
    loaded, and outputs agree with it if the pattern has all pairs. The argument `pattern` replaces
    `src_mask`.

    Args:
        d_model: features of a token.
        nhead: number of heads.
        dim_feedforward: features between the two layers of the feed-forward network.
        dropout: probability of dropout, in [0, 1), for the attention weights, the outputs of both blocks, and
            between the two layers of the feed-forward network.
        activation: "relu", "gelu" or a function.
        layer_norm_eps: epsilon of the layer norms.
        batch_first: layout of the inputs: True: [batch, length, features]; False: [length, batch, features].
        norm_first: whether layer norms come before each block (Xiong et al. 2020) instead of after it.
        bias: whether linear layers and layer norms have biases.
        device: device of the parameters.
        dtype: dtype of the parameters.
        fused: None: the plan decides; False: attention is computed by three operations; True: a fused kernel
            runs, or an error is raised if none can.

    Raises:
        TypeError: an argument is of another type.
        ValueError: an argument is out of range.
    """

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Activation = "relu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        fused: bool | None = None,
    ) -> None:
        super().__init__()
        options: dict[str, Any] = {"device": device, "dtype": dtype}
        self.dropout = check_share("dropout", dropout)
        self.norm_first = check_flag("norm_first", norm_first)
        self.activation = _activation(activation)
        self.self_attn = SparseAttention(d_model, nhead, dropout, bias, batch_first, fused=fused, **options)
        check_integer("dim_feedforward", dim_feedforward, most=MOST_FEATURES)
        self.linear1 = torch.nn.Linear(d_model, dim_feedforward, bias=bias, **options)
        self.linear2 = torch.nn.Linear(dim_feedforward, d_model, bias=bias, **options)
        self.norm1 = torch.nn.LayerNorm(d_model, eps=layer_norm_eps, bias=bias, **options)
        self.norm2 = torch.nn.LayerNorm(d_model, eps=layer_norm_eps, bias=bias, **options)

    def reset_parameters(self) -> None:
        """Draws all parameters."""
        for module in (self.self_attn, self.linear1, self.linear2, self.norm1, self.norm2):
            module.reset_parameters()

    def forward(
        self,
        src: torch.Tensor,
        pattern: SparseOperand,
        src_key_padding_mask: torch.Tensor | None = None,
        is_causal: bool = False,
        *,
        bias: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Computes the layer's output.

        Args:
            src: [length, batch, d_model], [batch, length, d_model] with batch_first, or [length, d_model].
            pattern: operand of shape [length, length] made by `gnnsparse.prepare`.
            src_key_padding_mask: [batch, length] or [length], bool, True for padding; or floating-point,
                added to the scores. It is converted by gnnsparse.nn.edge_bias, which needs memory for each
                edge. None: no token is padding.
            is_causal: whether edges to later tokens are masked. torch's argument of this name is a hint only.
            bias: added to the scores of the edges, the argument of SparseAttention; None: no bias.

        Returns:
            A tensor of the shape of src.

        Raises:
            TypeError: an argument is of another type or dtype.
            ValueError: an argument has another shape or device.
        """
        check_features("src", src, self.self_attn.embed_dim, self.linear1.weight, dim=None)
        given = (pattern, src_key_padding_mask, is_causal, bias)
        if self.norm_first:
            x = src + self._attend(self.norm1(src), *given)
            return x + self._feed_forward(self.norm2(x))
        x = self.norm1(src + self._attend(src, *given))
        return self.norm2(x + self._feed_forward(x))

    def _attend(
        self, x: torch.Tensor, pattern: SparseOperand, padding: Any, is_causal: bool, bias: Any
    ) -> torch.Tensor:
        out = self.self_attn(x, x, x, pattern, padding, is_causal, bias=bias)
        return drop(out, self.dropout, self.training)

    def _feed_forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = drop(activated_linear(x, self.linear1, self.activation), self.dropout, self.training)
        return drop(self.linear2(hidden), self.dropout, self.training)


class TransformerEncoder(torch.nn.Module):
    """A stack of encoder layers, with the interface of torch.nn.TransformerEncoder.

    Args:
        encoder_layer: the layer of which copies are stacked. As in torch they start with equal parameters;
            `reset_parameters` draws them for each layer.
        num_layers: number of layers.
        norm: a module applied to the output of the last layer, or None.

    Raises:
        TypeError: an argument is of another type.
        ValueError: an argument is out of range.
    """

    def __init__(
        self,
        encoder_layer: TransformerEncoderLayer,
        num_layers: int,
        norm: torch.nn.Module | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(encoder_layer, TransformerEncoderLayer):
            bad_type("encoder_layer", encoder_layer, "a gnnsparse.nn.TransformerEncoderLayer")
        self.num_layers = check_integer("num_layers", num_layers)
        self.layers = torch.nn.ModuleList(copy.deepcopy(encoder_layer) for _ in range(num_layers))
        self.norm = norm

    def reset_parameters(self) -> None:
        """Draws the parameters of all layers."""
        modules: list[Any] = [*self.layers, self.norm]
        for module in modules:
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()

    def forward(
        self,
        src: torch.Tensor,
        pattern: SparseOperand,
        src_key_padding_mask: torch.Tensor | None = None,
        is_causal: bool = False,
        *,
        bias: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Computes the output of the last layer.

        The padding mask is converted one time for all layers.

        Args:
            src: [length, batch, d_model], [batch, length, d_model] with batch_first, or [length, d_model].
            pattern: operand of shape [length, length] made by `gnnsparse.prepare`.
            src_key_padding_mask: [batch, length] or [length], bool, True for padding; or floating-point,
                added to the scores. None: no token is padding.
            is_causal: whether edges to later tokens are masked.
            bias: added to the scores of the edges, the argument of SparseAttention; None: no bias.

        Returns:
            A tensor of the shape of src.

        Raises:
            TypeError: an argument is of another type or dtype.
            ValueError: an argument has another shape or device.
        """
        if src_key_padding_mask is not None and isinstance(pattern, SparseOperand):
            padding = edge_bias(pattern, src_key_padding_mask)
            bias = padding if bias is None else bias + padding
        for layer in self.layers:
            src = layer(src, pattern, None, is_causal, bias=bias)
        return src if self.norm is None else self.norm(src)
