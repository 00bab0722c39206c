"""sparsify on models of Hugging Face's transformers: the numbers of masked dense attention."""

from __future__ import annotations

import copy
import inspect
import pickle
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from gnnsparse import masks
from gnnsparse.interop.transformers import report, restore, sparsify
from gnnsparse.testing import assert_accurate
from tests.helpers import ROUNDING, copies_of
from tests.nn.sparsified import allowed, assert_same, masked_attention, twins

transformers = pytest.importorskip(
    "transformers", reason="transformers is not installed: pip install 'gnnsparse[transformers]'"
)

LENGTH, BATCH, TOKENS = 17, 3, 40
#: What models call their cache, as an argument and in their results: "past_key_values" before 5.24.
CACHE = next(
    name
    for name in ("cache", "past_key_values")
    if name in inspect.signature(transformers.LlamaForCausalLM.forward).parameters
)
WINDOW = {"name": "window", "radius": 4}
PATTERNS: dict[str, Callable[[int], Any]] = {
    "full": masks.full,
    "window": lambda n: masks.window(n, 4),
    "random": lambda n: masks.random(n, min(n, 5), seed=n),
}
#: A few roundings of a model of two layers.
FLOOR = 16 * ROUNDING["fp32"]
#: Dropout is 0 unless a test is about it: the dense twin would draw other numbers.
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def bert(**options: Any) -> Any:
    settings = {**SMALL, **NO_DROPOUT, "vocab_size": TOKENS, "max_position_embeddings": 32, **options}
    return transformers.BertModel(transformers.BertConfig(**settings), add_pooling_layer=False)


def vit(**options: Any) -> Any:
    settings = {**SMALL, **NO_DROPOUT, "image_size": 16, "patch_size": 4, **options}
    return transformers.ViTModel(transformers.ViTConfig(**settings), add_pooling_layer=False)


def llama(**options: Any) -> Any:
    settings = {**SMALL, "num_key_value_heads": 2, "vocab_size": TOKENS, "max_position_embeddings": 64}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**settings, **options}))


def gpt2() -> Any:
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32, "vocab_size": TOKENS}
    off = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0, "bos_token_id": 0, "eos_token_id": 0}
    return transformers.GPT2Model(transformers.GPT2Config(**sizes, **off))


def ids(batch: int = BATCH, length: int = LENGTH, device: str = "cpu") -> torch.Tensor:
    return torch.randint(0, TOKENS, (batch, length), device=device)


def unpadded(device: str, side: str = "right") -> torch.Tensor:
    """The mask that a tokenizer gives: 1 for tokens. With three padded ones every window keeps a token."""
    lengths = torch.tensor([LENGTH, LENGTH - 2, LENGTH - 3], device=device)
    kept = (torch.arange(LENGTH, device=device) < lengths[:, None]).long()
    return kept if side == "right" else kept.flip(1)


MODELS: dict[str, Callable[[], Any]] = {"bert": bert, "llama": llama, "gpt2": gpt2}


def body(kind: str) -> Any:
    """A model without its head, whose parameters all get gradients but those of the embeddings."""
    model = MODELS[kind]()
    model = getattr(model, "model", model)
    model.get_input_embeddings().weight.requires_grad_(False)  # inputs are embedded already
    return model


def judge(ours: Any, theirs: Any, call: Callable[[Any], torch.Tensor]) -> None:
    """Compares what a call of a model gives with the dense model's, in float32 and float64."""
    plain, exact = call(theirs), call(copy.deepcopy(theirs).double())
    assert_accurate(call(ours), plain, exact, floor=FLOOR)


def compare(model: Any, x: torch.Tensor, run: Any, pattern: str = "window", dtype: Any = None) -> None:
    """Compares `run(model, x)` and all gradients with the dense model's, whose mask is the pattern."""
    ours, theirs = twins(model, PATTERNS[pattern], str(x.device))
    with masked_attention(allowed(PATTERNS[pattern](LENGTH), str(x.device))) as name:
        theirs.set_attn_implementation(name)
        assert_same((lambda x: run(ours, x), ours), (lambda x: run(theirs, x), theirs), [x], dtype)


def embedded(model: Any, x: torch.Tensor) -> torch.Tensor:
    return model(inputs_embeds=x).last_hidden_state


@pytest.mark.parametrize("kind", list(MODELS))
@pytest.mark.parametrize("side", [None, "right", "left"])
@pytest.mark.parametrize("training", [True, False])
def test_text_models(device: str, kind: str, side: str | None, training: bool) -> None:
    """Padded tokens are left out of the comparison: dense attention may have no key for them, and NaN."""
    mask = None if side is None else unpadded(device, side)
    kept = torch.ones(BATCH, LENGTH, dtype=torch.bool, device=device) if mask is None else mask.bool()

    def run(model: Any, x: torch.Tensor) -> torch.Tensor:
        return model(inputs_embeds=x, attention_mask=mask).last_hidden_state[kept]

    compare(body(kind).train(training), torch.randn(BATCH, LENGTH, 32, device=device), run)


@pytest.mark.parametrize("pattern", ["window", "full"])
def test_vit(device: str, pattern: str) -> None:
    images = torch.randn(2, 3, 16, 16, device=device)
    compare(vit(), images, lambda model, x: model(x).last_hidden_state, pattern)


@pytest.mark.parametrize("kind", ["bert", "llama"])
def test_autocast(device: str, kind: str) -> None:
    dtype = torch.float16 if device == "cuda" else torch.bfloat16
    compare(body(kind), torch.randn(BATCH, LENGTH, 32, device=device), embedded, dtype=dtype)


@pytest.mark.parametrize("pattern", list(PATTERNS))
@pytest.mark.parametrize("chunks", [[LENGTH - 3, 1, 1, 1], [6, 5, 6], [1] * LENGTH], ids=str)
def test_a_cache_gives_the_numbers_of_the_whole_sequence(
    device: str, pattern: str, chunks: list[int]
) -> None:
    """Each chunk takes its own rows of the pattern for the length so far.

    What the second layer has in its cache comes from patterns for shorter lengths. These agree with the one
    for the length so far unless they are random. A random row may have no key that is not later.
    """
    make, layers = PATTERNS[pattern], 1 if pattern == "random" else 2
    ours, theirs = twins(llama(num_hidden_layers=layers).eval(), make, device)
    tokens, begin, cache = ids(device=device), 0, None
    for count in chunks:
        done = ours(tokens[:, begin : begin + count], use_cache=True, **{CACHE: cache})
        begin, cache = begin + count, done[CACHE]
        mask = allowed(make(begin), device)
        has_keys = mask.tril().any(1)[-count:]
        with masked_attention(mask) as name:
            theirs.set_attn_implementation(name)
            plain = theirs(tokens[:, :begin]).logits[:, -count:]
            exact = copy.deepcopy(theirs).double()(tokens[:, :begin]).logits[:, -count:]
        assert_accurate(done.logits[:, has_keys], plain[:, has_keys], exact[:, has_keys], floor=FLOOR)


def test_generate() -> None:
    """With all pairs sparse attention writes what dense attention writes."""
    ours, theirs = twins(llama().eval(), masks.full)
    settings = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    for mask in (torch.ones(BATCH, LENGTH, dtype=torch.long), unpadded("cpu", "left")):
        tokens = ids()
        written = ours.generate(tokens, attention_mask=mask, **settings)
        assert torch.equal(written, theirs.generate(tokens, attention_mask=mask, **settings))
        assert written.shape == (BATCH, LENGTH + 8)


def test_a_mask_of_all_pairs_is_merged_with_the_pattern(device: str) -> None:
    ours, theirs = twins(bert().eval(), WINDOW, device)
    mask = (torch.rand(BATCH, 1, LENGTH, LENGTH, device=device) < 0.6) | torch.eye(
        LENGTH, dtype=torch.bool, device=device
    )
    both = mask & allowed(masks.window(LENGTH, 4), device)
    numbers = torch.zeros(both.shape, device=device).masked_fill(~mask, float("-inf"))
    tokens = ids(device=device)
    for given in (mask, numbers):
        judge(ours, theirs, lambda m, of=given: m(tokens, attention_mask=of if m is ours else both)[0])


def test_packed_sequences_keep_to_themselves() -> None:
    """Positions that begin again mark a new sequence; transformers then gives a mask of all pairs."""
    ours, _ = twins(llama().eval(), WINDOW)
    one, other = ids(1, 6), ids(1, 8)
    positions = torch.cat([torch.arange(6), torch.arange(8)])[None]
    packed = ours(torch.cat([one, other], 1), position_ids=positions, use_cache=False).logits
    assert_accurate(packed[:, 6:], ours(other).logits, ours(other).logits, floor=FLOOR)
    assert_accurate(packed[:, :6], ours(one).logits, ours(one).logits, floor=FLOOR)


@pytest.mark.parametrize("side", [None, "right"])
def test_layers_without_a_pattern_stay_dense(side: str | None) -> None:
    ours, theirs = twins(llama().eval(), {"model.layers.1.*": masks.full})
    assert [row.name for row in report(ours).replaced] == ["model.layers.1.self_attn"]
    tokens, mask = ids(), None if side is None else unpadded("cpu")
    kept = slice(None) if mask is None else mask.bool()
    judge(ours, theirs, lambda model: model(tokens, attention_mask=mask).logits[kept])
    # A second chunk: the dense layer has more keys than queries, and no mask.
    cache = ours(tokens[:, :5], use_cache=True)[CACHE]
    later = ours(tokens[:, 5:], **{CACHE: cache}).logits
    judge(ours, theirs, lambda model: later if model is ours else model(tokens).logits[:, 5:])


def test_weights_can_be_looked_at() -> None:
    ours, theirs = twins(bert().eval(), WINDOW)
    tokens, pattern = ids(), allowed(masks.window(LENGTH, 4))
    weights = ours(tokens, output_attentions=True).attentions
    theirs.set_attn_implementation("eager")
    mask = torch.zeros(BATCH, 1, LENGTH, LENGTH).masked_fill(~pattern, float("-inf"))
    plain = theirs(tokens, attention_mask=mask, output_attentions=True).attentions
    exact = theirs.double()(tokens, attention_mask=mask.double(), output_attentions=True).attentions
    assert len(weights) == 2
    for got, simple, right in zip(weights, plain, exact, strict=True):
        assert_accurate(got, simple, right, floor=FLOOR)
        assert not got[..., ~pattern].any()


def test_dropout_acts_in_training_alone() -> None:
    ours = sparsify(bert(attention_probs_dropout_prob=0.5), WINDOW)
    tokens = ids()
    assert not torch.equal(ours(tokens)[0], ours(tokens)[0])
    ours.eval()
    assert torch.equal(ours(tokens)[0], ours(tokens)[0])


def test_gradient_checkpointing_changes_no_bit() -> None:
    ours = sparsify(llama().train(), WINDOW)
    tokens = ids()

    def step() -> list[torch.Tensor]:
        ours.zero_grad()
        ours(tokens, labels=tokens, use_cache=False).loss.backward()
        return [p.grad.clone() for p in ours.parameters() if p.grad is not None]

    plain = step()
    ours.activation_checkpointing_enable()
    checkpointed = step()
    assert len(plain) > 10
    assert all(torch.equal(a, b) for a, b in zip(plain, checkpointed, strict=True))


def test_parameters_and_files_stay_as_they_are(tmp_path: Any) -> None:
    ours, theirs = twins(bert(), WINDOW)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    ours.load_state_dict(theirs.state_dict())
    ours.save_pretrained(tmp_path)
    again = transformers.BertModel.from_pretrained(tmp_path, add_pooling_layer=False)
    assert again.config._attn_implementation == "sdpa"
    tokens = ids()
    assert torch.equal(again.eval()(tokens)[0], theirs.eval()(tokens)[0])


def test_copies_pickles_and_saved_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pickle is read as in a new process, whose registries do not have our functions yet."""
    ours, _ = twins(llama().eval(), WINDOW)
    tokens = ids()
    expected, text = ours(tokens).logits, pickle.dumps(ours)
    copies = copies_of(ours)
    for registry in (transformers.AttentionInterface, transformers.AttentionMaskInterface):
        monkeypatch.delitem(registry._global_mapping, "gnnsparse")
    for other in (pickle.loads(text), *copies):
        assert torch.equal(other(tokens).logits, expected)
        assert len(report(other).replaced) == 2
        restore(other)
        assert not torch.equal(other(tokens).logits, expected)
    assert torch.equal(ours(tokens).logits, expected)


def test_models_of_one_configuration_stay_apart() -> None:
    config = llama().config
    first, second = (transformers.LlamaForCausalLM(config).eval() for _ in range(2))
    tokens = ids()
    dense = second(tokens).logits
    sparsify(first, WINDOW)
    assert second.config._attn_implementation == config._attn_implementation == "sdpa"
    assert first.model.config is first.config
    sparsify(second, WINDOW)
    restore(first)
    assert len(report(second).replaced) == 2
    assert not torch.equal(second(tokens).logits, dense)
    assert torch.equal(restore(second)(tokens).logits, dense)
    assert second.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("before", ["sdpa", "eager"])
def test_the_attention_of_before(before: str) -> None:
    """restore gives it back, and the report sees that a configuration asks for it."""
    model, tokens = bert().eval(), ids()
    model.set_attn_implementation(before)
    dense = model(tokens)[0]
    assert not torch.equal(sparsify(model, WINDOW)(tokens)[0], dense)
    model.set_attn_implementation(before)
    reason = f"its configuration asks for attention by {before!r}"
    assert {row.reason for row in report(model).rows} == {reason}
    assert not report(model).replaced
    assert restore(model) is model
    assert model.config._attn_implementation == before
    assert torch.equal(model(tokens)[0], dense)


def test_a_model_inside_of_another_module() -> None:
    class Classifier(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.text, self.pool = bert(), torch.nn.MultiheadAttention(32, 2, batch_first=True)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            x = self.text(tokens).last_hidden_state
            return self.pool(x, x, x)[0]

    model = Classifier().eval()
    tokens = ids()
    dense = model(tokens)
    sparsify(model, WINDOW)
    names = ["text.encoder.layer.0.attention.self", "text.encoder.layer.1.attention.self", "pool"]
    assert [row.name for row in report(model).replaced] == names
    assert not torch.equal(model(tokens), dense)
    assert torch.equal(restore(model)(tokens), dense)


def test_attention_to_another_sequence_stays_dense() -> None:
    model = bert(is_decoder=True, add_cross_attention=True).eval()
    dense = copy.deepcopy(model)
    sparsify(model, masks.full)
    reasons = {row.name: row.reason for row in report(model).rows if row.uses is None}
    names = [f"encoder.layer.{i}.crossattention.self" for i in range(2)]
    assert reasons == dict.fromkeys(names, "it attends, or can attend, to another sequence")
    tokens, other = ids(), torch.randn(BATCH, 7, 32)
    mask, own = torch.ones(BATCH, 7, dtype=torch.long), unpadded("cpu")
    mask[1, 4:] = 0

    def run(model: Any) -> torch.Tensor:
        states = {"encoder_hidden_states": other.to(model.dtype), "encoder_attention_mask": mask}
        return model(tokens, attention_mask=own, **states).last_hidden_state[own.bool()]

    judge(model, dense, run)


def test_caches_of_a_fixed_size_are_refused() -> None:
    model = sparsify(llama().eval(), WINDOW)
    message = (
        "cache (past_key_values before transformers 5.24): got a cache of a fixed size, or of a sliding "
        "window; accepted in a model with sparse attention"
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        model.generate(ids(), max_new_tokens=2, cache_implementation="static", pad_token_id=0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bert", "llama"])
def test_compiled_models(kind: str) -> None:
    torch._dynamo.reset()

    def run(model: Any, x: torch.Tensor) -> torch.Tensor:
        is_ours = bool(report(model).replaced)
        return embedded(torch.compile(model, fullgraph=True, backend="aot_eager") if is_ours else model, x)

    compare(body(kind), torch.randn(BATCH, LENGTH, 32), run)


# Which models it takes: with all pairs they are what they were.

TEXT = {**SMALL, "vocab_size": TOKENS, "max_position_embeddings": 64}
GROUPED = {**TEXT, "num_key_value_heads": 2}

TAKEN: dict[str, dict[str, Any]] = {
    "Bert": TEXT,
    "CLIPText": {**TEXT, "eos_token_id": 2},
    "DistilBert": {"vocab_size": TOKENS, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 24},
    "Electra": TEXT,
    "GPTNeoX": TEXT,
    "Gemma3Text": {**GROUPED, "head_dim": 8, "sliding_window": 6},
    "Llama": GROUPED,
    "Mistral": {**GROUPED, "sliding_window": 6},
    "ModernBert": {**TEXT, "pad_token_id": 0, "global_attn_every_n_layers": 2, "local_attention": 8},
    "OPT": {
        "vocab_size": TOKENS, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
        "ffn_dim": 24, "max_position_embeddings": 64, "word_embed_proj_dim": 32,
    },
    "Phi": GROUPED,
    "Qwen2": GROUPED,
    "Qwen3": {**GROUPED, "head_dim": 8},
    "Roberta": TEXT,
}  # fmt: skip

OTHER_SEQUENCE = "it attends, or can attend, to another sequence"
LEFT: dict[str, tuple[dict[str, Any], str]] = {
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
    assert [row.uses for row in report(ours).rows] == ["full", "full"]
    tokens, mask = torch.randint(3, TOKENS, (2, 20)), torch.ones(2, 20, dtype=torch.long)
    if side is not None:
        mask[1, slice(15, None) if side == "right" else slice(0, 5)] = 0

    def run(model: Any) -> torch.Tensor:
        return model(tokens, attention_mask=mask).last_hidden_state[mask.bool()]

    with torch.no_grad():
        judge(ours, dense, run)


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
