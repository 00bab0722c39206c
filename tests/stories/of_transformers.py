"""Checks of the stories about Transformers."""

from __future__ import annotations

from tests.stories.checks import story
from tests.stories.running import Outcome


@story("In the place of nn.MultiheadAttention")
def _(outcome: Outcome) -> None:
    assert outcome.output == "13% of all pairs\n"


@story("In torch's own encoder")
def _(outcome: Outcome) -> None:
    first, last = map(float, outcome.output.split())
    assert last < 0.9 * first


@story("Padding")
def _(outcome: Outcome) -> None:
    assert outcome.output == "torch.Size([2, 50, 32])\n"


@story("Lengths without padding", warns=True)
def _(outcome: Outcome) -> None:
    assert all("is_fx_tracing" in line for line in outcome.errors.splitlines())  # torch 2.13, of itself
    assert outcome.output == "[100, 3, 57]\n"


@story("Cross-attention")
def _(outcome: Outcome) -> None:
    assert outcome.output.startswith("torch.Size([2, 40, 32]) ")
    assert 40 < int(outcome.output.split()[-3].rstrip("%")) < 90


@story("Fewer heads of keys than of queries")
def _(outcome: Outcome) -> None:
    assert outcome.output == "torch.Size([64, 32])\n"


@story("Write one token after another")
def _(outcome: Outcome) -> None:
    assert outcome.output == "20 of 128 tokens are kept\n"


@story("Make a trained model sparse")
def _(outcome: Outcome) -> None:
    first, _, report = outcome.output.partition("\n")
    assert first == "tensor(True)"
    assert report.count("window(radius=4)") == 2


@story("A model of Hugging Face", needs=("transformers",))
def _(outcome: Outcome) -> None:
    assert outcome.output == "torch.Size([2, 128, 32]) True\n"


@story("Sparse weights")
def _(outcome: Outcome) -> None:
    values, zeros = outcome.output.split()
    assert 32 + 200 <= int(values) <= 32 + 210  # the bias, and a tenth of 64 x 32
    assert 0.89 < float(zeros) < 0.91
