"""A small Transformer that learns tunes and goes on with them, one note after another, from a cache.

    python examples/write_tunes.py
    python examples/write_tunes.py --radius 256 --hidden 512 --layers 6 --notes 2000 --device cuda

A tune repeats a bar of notes, which differs from tune to tune. A note attends to earlier notes in a sliding
window and to the first notes of the tune (the sinks of Xiao et al. 2024, "Efficient Streaming Language Models
with Attention Sinks"). In training whole tunes are computed at once by the sparse kernels. To go on with
a tune, the keys and values of earlier notes are taken from a `gnnsparse.nn.KeyValueCache`, which keeps those
in the window and the sinks: the memory and the time for a note do not grow with the tune. The beginnings that
are given have several lengths, in one batch.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812

from gnnsparse.nn import KeyValueCache, TransformerEncoder, TransformerEncoderLayer

#: Notes that a tune may have.
NOTES = 12
#: Notes of a bar.
BAR = 6


class Composer(torch.nn.Module):
    """Says which note comes next.

    Args:
        hidden: features of a note.
        layers: number of layers.
        radius: notes that a note sees before itself.
        sinks: notes at the beginning that every note sees.
    """

    def __init__(self, hidden: int, layers: int, radius: int, sinks: int) -> None:
        super().__init__()
        pattern = [
            {"name": "sliding_window", "radius": radius},
            {"name": "global_tokens", "tokens": sinks},
        ]
        layer = TransformerEncoderLayer(
            hidden,
            4,
            2 * hidden,
            dropout=0.0,
            batch_first=True,
            norm_first=True,
            num_kv_heads=2,
            pattern=pattern,
        )
        self.note = torch.nn.Embedding(NOTES, hidden)
        self.place = torch.nn.Embedding(BAR, hidden)
        self.encoder = TransformerEncoder(layer, layers, torch.nn.LayerNorm(hidden))
        self.encoder.reset_parameters()
        self.out = torch.nn.Linear(hidden, NOTES)

    def _embed(self, notes: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
        """Embeds notes [batch, n], of which the first in each tune has the position `first` [batch]."""
        position = first[:, None] + torch.arange(notes.shape[1], device=notes.device)
        return self.note(notes) + self.place(position % BAR)

    def forward(self, notes: torch.Tensor) -> torch.Tensor:
        """Compute the scores of the next note, [batch, n, NOTES], for all notes of tunes [batch, n]."""
        x = self._embed(notes, notes.new_zeros(notes.shape[0]))
        return self.out(self.encoder(x, is_causal=True))

    def make_caches(self) -> list[KeyValueCache]:
        """Return an empty cache for each layer."""
        return self.encoder.make_cache()

    @torch.no_grad()
    def go_on(
        self, notes: torch.Tensor, caches: list[KeyValueCache], lengths: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Compute the scores of the next note for notes that follow those in the caches.

        Args:
            notes: [batch, n].
            caches: what `make_caches` returned.
            lengths: how many of the n notes each tune has; None: all.

        Returns:
            [batch, n, NOTES].
        """
        first = caches[0].lengths.expand(notes.shape[0]).to(notes.device)
        return self.out(self.encoder.decode(self._embed(notes, first), caches, lengths=lengths))


def tunes(count: int, length: int, generator: torch.Generator) -> torch.Tensor:
    """Make tunes, int64 [count, length], each of which repeats a bar of its own."""
    bars = torch.randint(NOTES, (count, BAR), generator=generator, device="cpu")
    return bars.repeat(1, -(-length // BAR))[:, :length]


def train(model: Composer, options: argparse.Namespace, generator: torch.Generator) -> None:
    """Train a model on tunes of 4 bars to say the next note, from the second bar on."""
    optimizer = torch.optim.Adam(model.parameters(), lr=options.lr)
    for step in range(options.steps):
        notes = tunes(options.batch, 4 * BAR + 1, generator).to(options.device)
        scores = model(notes[:, :-1])[:, BAR:]
        loss = F.cross_entropy(scores.flatten(0, 1), notes[:, BAR + 1 :].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % max(options.steps // 5, 1) == 0 or step == options.steps - 1:
            print(f"step {step:4}: loss {loss.item():.3f}")


def write(
    model: Composer, begun: torch.Tensor, lengths: torch.Tensor, count: int
) -> tuple[torch.Tensor, int]:
    """Goes on with tunes, each time with the note that the model likes best.

    Args:
        model: the model.
        begun: the beginnings, [batch, n], padded on the right.
        lengths: their lengths, int64 [batch] on the CPU.
        count: notes to write for each tune.

    Returns:
        The notes written, [batch, count], and the most notes that a layer has kept of a tune.
    """
    caches = model.make_caches()
    scores = model.go_on(begun, caches, lengths)
    last = (lengths - 1).to(begun.device)
    written = [scores[torch.arange(len(last), device=last.device), last].argmax(1)]
    kept = 0
    while len(written) < count:
        written.append(model.go_on(written[-1][:, None], caches)[:, 0].argmax(1))
        kept = max(kept, *(len(tune) for cache in caches for tune in cache.kept))
    return torch.stack(written, 1), kept


@torch.no_grad()
def write_without_cache(model: Composer, begun: torch.Tensor, count: int) -> torch.Tensor:
    """Goes on with one tune [n] by computing the whole tune for each note. Returns the notes, [count]."""
    notes = begun[None]
    for _ in range(count):
        notes = torch.cat([notes, model(notes)[:, -1:].argmax(2)], dim=1)
    return notes[0, len(begun) :]


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Train a model, go on with tunes, and print what it costs.

    Returns:
        The share of right notes ("right"), of notes that are the same without a cache ("same"), the most
        notes kept ("kept"), and milliseconds for a note with a cache ("cached_ms") and without ("whole_ms").
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hidden", type=int, default=64, help="features of a note")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--radius", type=int, default=9, help="notes that a note sees before itself")
    parser.add_argument("--sinks", type=int, default=2, help="notes at the beginning that every note sees")
    parser.add_argument("--steps", type=int, default=150, help="training steps")
    parser.add_argument("--batch", type=int, default=32, help="tunes in a training step")
    parser.add_argument("--lr", type=float, default=0.003)
    parser.add_argument("--notes", type=int, default=100, help="notes to write for each tune")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)

    torch.manual_seed(options.seed)
    generator = torch.Generator("cpu").manual_seed(options.seed)
    model = Composer(options.hidden, options.layers, options.radius, options.sinks).to(options.device)
    train(model, options, generator)
    model.eval()

    lengths = torch.tensor([BAR + 1, 2 * BAR, 2 * BAR + 5, 4 * BAR], device="cpu")
    whole = tunes(len(lengths), int(lengths.max()) + options.notes, generator).to(options.device)
    begun = whole[:, : int(lengths.max())]
    began = time.perf_counter()
    written, kept = write(model, begun, lengths, options.notes)
    cached_ms = 1e3 * (time.perf_counter() - began) / options.notes
    began = time.perf_counter()
    alone = [write_without_cache(model, b[:n], options.notes) for b, n in zip(begun, lengths, strict=True)]
    whole_ms = 1e3 * (time.perf_counter() - began) / options.notes
    wanted = torch.stack([t[n : n + options.notes] for t, n in zip(whole, lengths, strict=True)])
    found = {
        "right": float((written == wanted).float().mean()),
        "same": float((written == torch.stack(alone)).float().mean()),
        "kept": float(kept),
        "cached_ms": cached_ms,
        "whole_ms": whole_ms,
    }
    print(f"{found['right']:.0%} of {written.numel()} notes are right")
    print(f"{found['same']:.0%} of them are the same without a cache")
    print(f"kept {kept} of {int(lengths.max()) + options.notes} notes in each layer")
    print(f"{len(lengths)} tunes, a note each: {cached_ms:.2f} ms with a cache, {whole_ms:.2f} ms without")
    return found


if __name__ == "__main__":
    main()
