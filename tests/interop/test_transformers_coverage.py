"""Which models of Hugging Face's transformers sparsify takes: with all pairs they are what they were."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
import torch

from gnnsparse import masks
from gnnsparse.interop.transformers import report, sparsify
from gnnsparse.testing import assert_accurate
from tests.helpers import ROUNDING

transformers = pytest.importorskip(
    "transformers", reason="transformers is not installed: pip install 'gnnsparse[transformers]'"
)

LENGTH, TOKENS = 20, 50
SMALL = {
    "vocab_size": TOKENS, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 24, "max_position_embeddings": 64,
}  # fmt: skip
GROUPED = {**SMALL, "num_key_value_heads": 2}
DECODED = {
    "vocab_size": TOKENS, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24,
    "max_position_embeddings": 64,
}  # fmt: skip

TAKEN: dict[str, dict[str, Any]] = {
    "Bert": SMALL,
    "CLIPText": {**SMALL, "eos_token_id": 2},
    "DistilBert": {"vocab_size": TOKENS, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 24},
    "Electra": SMALL,
    "GPTNeoX": SMALL,
    "Gemma3Text": {**GROUPED, "head_dim": 8, "sliding_window": 6},
    "Llama": GROUPED,
    "Mistral": {**GROUPED, "sliding_window": 6},
    "ModernBert": {**SMALL, "pad_token_id": 0, "global_attn_every_n_layers": 2, "local_attention": 8},
    "OPT": {
        "vocab_size": TOKENS, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
        "ffn_dim": 24, "max_position_embeddings": 64, "word_embed_proj_dim": 32,
    },
    "Phi": GROUPED,
    "Qwen2": GROUPED,
    "Qwen3": {**GROUPED, "head_dim": 8},
    "Roberta": SMALL,
}  # fmt: skip

OTHER_SEQUENCE = "it attends, or can attend, to another sequence"
LEFT: dict[str, tuple[dict[str, Any], str]] = {
    "Bart": (DECODED, OTHER_SEQUENCE),
    "T5": (
        {"vocab_size": TOKENS, "d_model": 32, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 4},
        OTHER_SEQUENCE,
    ),
    "Gemma2": (
        {**GROUPED, "head_dim": 8},
        "Gemma2Model has scores that scaled_dot_product_attention does not compute either",
    ),
}


def model_of(name: str, settings: dict[str, Any]) -> Any:
    config = getattr(transformers, f"{name}Config")(**settings)
    return getattr(transformers, f"{name}Model")(config).eval()


@pytest.mark.parametrize("name", list(TAKEN))
@pytest.mark.parametrize("side", [None, "right", "left"])
def test_models_that_are_taken(name: str, side: str | None) -> None:
    """Sliding windows, norms and rotations of queries and keys: what is around attention stays."""
    dense = model_of(name, TAKEN[name])
    for parameter in dense.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    ours = sparsify(copy.deepcopy(dense), masks.full)
    assert [row.pattern for row in report(ours).rows] == ["full", "full"]
    tokens, mask = torch.randint(3, TOKENS, (2, LENGTH)), torch.ones(2, LENGTH, dtype=torch.long)
    if side is not None:
        mask[1, slice(15, None) if side == "right" else slice(0, 5)] = 0

    def run(model: Any) -> torch.Tensor:
        return model(tokens, attention_mask=mask).last_hidden_state[mask.bool()]

    with torch.no_grad():
        got, plain = run(ours), run(dense)
        exact = run(dense.double())
    assert_accurate(got, plain, exact, floor=16 * ROUNDING["fp32"])


@pytest.mark.parametrize("name", list(LEFT))
def test_models_that_are_left(name: str) -> None:
    settings, reason = LEFT[name]
    model = model_of(name, settings)
    with pytest.raises(ValueError, match=re.escape(reason)):
        sparsify(model, masks.full)
    assert {row.reason for row in report(model).rows} == {reason}
    assert model.config._attn_implementation != "gnnsparse"


def test_scores_of_another_kind_are_refused() -> None:
    model = sparsify(model_of("Llama", GROUPED), masks.full)
    message = "softcap: is not computed in a sparse layer; accepted: None, or no pattern for the layer"
    with pytest.raises(ValueError, match=re.escape(message)):
        model(torch.zeros(1, 4, dtype=torch.long), softcap=30.0)
