"""Keys and values of earlier tokens, for writing one token after another by a pattern."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from gnnsparse.errors import bad_type, bad_value, check_integer, check_tensor
from gnnsparse.ops.attention.api import attention
from gnnsparse.patterns.operands import SharedPatterns, shared_patterns
from gnnsparse.patterns.read import read_own_pattern
from gnnsparse.patterns.rules import Rows, rule_of
from gnnsparse.precision import PRECISIONS
from gnnsparse.preprocess.api import prepare
from gnnsparse.sparse.operand import SparseOperand

__all__ = ["KeyValueCache"]

_DTYPES = (*PRECISIONS, torch.float64)
#: Tokens that are computed at once beside kept ones, so that their scores take little memory.
_CHUNK = 64
#: Slots of a new cache.
_FEWEST = 16


class KeyValueCache:
    """The keys and values that later tokens of sequences attend to, and no others.

    A new token attends to the earlier tokens that the pattern gives its query, and to itself if the pattern
    says so: what `is_causal=True` computes for whole sequences. A token is dropped when the pattern gives it
    to no later query, so that with a window, the first tokens ("sinks", Xiao et al. 2024, "Efficient
    Streaming Language Models with Attention Sinks") and segments the memory does not grow with the sequence.

    Gradients are not computed. A cache belongs to one layer and one batch of sequences.

    Args:
        pattern: the argument of SparseAttention.
        pattern_options: options of a pattern that is given by its name.
        max_length: the most tokens of a sequence; None: no limit. The rows of "bigbird", "random", "expander"
            and "vector_wise", and of functions of yours, depend on the length: they need it, and are those
            of the pattern of this length.

    Raises:
        TypeError: an argument is of another type.
        ValueError: an argument is out of range, or `max_length` is missing.
    """

    def __init__(
        self, pattern: Any = "causal", pattern_options: Any = None, *, max_length: int | None = None
    ) -> None:
        if max_length is not None:
            check_integer("max_length", max_length)
        read = read_own_pattern("pattern", pattern, pattern_options)
        self._patterns: SharedPatterns = shared_patterns(read, None)
        self._rule = rule_of(read, max_length)
        self._most = self._rule.graph.num_rows if isinstance(self._rule, Rows) else max_length
        self.clear()

    def clear(self) -> None:
        """Forget all sequences."""
        self._keys: Any = None  # tensors from the first tokens on
        self._values: Any = None
        # Positions are kept on the CPU, one row for all sequences as long as their lengths are the same.
        self._counts = torch.zeros(1, dtype=torch.int64, device="cpu")
        self._held = torch.full((1, 0), -1, dtype=torch.int64, device="cpu")

    @property
    def lengths(self) -> torch.Tensor:
        """Number of tokens that each sequence has had, int64 [batch] on the CPU; [1] before the first."""
        return self._counts.expand(self._batch()).clone()

    @property
    def kept(self) -> list[list[int]]:
        """Positions of the tokens that are kept, ascending, for each sequence."""
        rows = self._held.expand(self._batch(), -1)
        return [sorted(row[row >= 0].tolist()) for row in rows]

    @property
    def nbytes(self) -> int:
        """Bytes of the memory for keys and values."""
        return sum(x.nbytes for x in (self._keys, self._values) if x is not None)

    def _batch(self) -> int:
        return 1 if self._keys is None else self._keys.shape[0]

    @torch.no_grad()
    def attend(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        scale: float | None = None,
        lengths: Any = None,
    ) -> torch.Tensor:
        """Add tokens to the sequences and compute what they attend to.

        The first call may have whole prompts, which run by the sparse kernels. Later tokens are compared with
        the kept ones by dense products, of which a pattern leaves few.

        Args:
            q: queries of the new tokens, [batch, heads, n, D], float32, float16, bfloat16 or float64.
            k: their keys [batch, key heads, n, D], in the dtype of q. The number of key heads divides that of
                heads.
            v: their values [batch, key heads, n, Dv].
            scale: factor of the scores; None: 1 / sqrt(D).
            lengths: how many of the n tokens each sequence has, integers [batch], a list or a tensor; what
                follows them is padding, whose output means nothing. None: all n.

        Returns:
            [batch, heads, n, Dv] in the dtype of q.

        Raises:
            TypeError: an argument is of another type or dtype.
            ValueError: a shape or device does not go with another argument or with earlier calls, or
                a sequence would have more tokens than `max_length`.
        """
        self._check(q, k, v)
        new = self._read_lengths(lengths, q.shape[0], q.shape[2])
        total = int((self._counts + new).max())
        if self._most is not None and total > self._most:
            bad_value("k", f"makes {total} tokens of a sequence; accepted: {self._most}, max_length")
        if self._keys is None:
            self._keys, self._values = (x.new_zeros(*x.shape[:2], 0, x.shape[3]) for x in (k, v))
        if not bool(self._counts.any()) and q.shape[2] > 1 and q.dtype in PRECISIONS:
            return self._first(q, k, v, scale, new)
        parts = []
        for begin in range(0, q.shape[2], _CHUNK):
            piece = slice(begin, begin + _CHUNK)
            count = (new - begin).clamp(0, min(_CHUNK, q.shape[2] - begin))
            parts.append(self._next(q[:, :, piece], k[:, :, piece], v[:, :, piece], scale, count))
        return torch.cat(parts, dim=2) if parts else v.new_zeros(*q.shape[:3], v.shape[3])

    def select(self, sequences: Any) -> None:
        """Replace the sequences by some of them, in another order or repeated, as beam search does.

        Args:
            sequences: indices of sequences, integers [new batch], a list or a tensor.

        Raises:
            TypeError: they are no integers.
            ValueError: one is out of range, or there are no sequences yet.
        """
        index = _integers("sequences", sequences)
        batch = self._batch()
        if self._keys is None:
            bad_value("sequences", "the cache is empty; accepted: indices after the first tokens")
        if index.numel() and not 0 <= int(index.min()) <= int(index.max()) < batch:
            bad_value("sequences", f"got {index.tolist()}; accepted: 0 to {batch - 1}")
        places = index.to(self._keys.device)
        self._keys, self._values = self._keys[places], self._values[places]
        if self._counts.numel() > 1:
            self._counts, self._held = self._counts[index], self._held[index]

    def _check(self, q: Any, k: Any, v: Any) -> None:
        for name, x in (("q", q), ("k", k), ("v", v)):
            check_tensor(name, x, dtypes=_DTYPES, shape=(None, None, None, None))
            if x.dtype != q.dtype or x.device != q.device:
                bad_value(name, f"is {x.dtype} on {x.device}; accepted: {q.dtype} on {q.device}, as q")
        batch, heads, count, width = q.shape
        if k.shape[1] == 0 or heads % k.shape[1]:
            bad_value("k", f"has {k.shape[1]} heads; accepted: a divisor of {heads}")
        for name, x, size, old in (("k", k, width, self._keys), ("v", v, v.shape[3], self._values)):
            wanted = (batch, k.shape[1], count, size)
            if x.shape != wanted:
                bad_value(name, f"has shape {tuple(x.shape)}; accepted: {wanted}")
            if old is not None and _kind(old) != _kind(x):
                bad_value(name, f"is {_kind(x)}; accepted: {_kind(old)}, as in earlier calls")

    def _read_lengths(self, lengths: Any, batch: int, count: int) -> torch.Tensor:
        """Return how many tokens each sequence gets, [batch], or [1] if all get as many."""
        if lengths is None:
            return torch.full((1,), count, dtype=torch.int64, device="cpu")
        new = _integers("lengths", lengths)
        if new.shape != (batch,) or (batch and not 0 <= int(new.min()) <= int(new.max()) <= count):
            bad_value("lengths", f"got {new.tolist()}; accepted: {batch} integers from 0 to {count}")
        if self._counts.numel() == 1 and bool((new == count).all()):
            return new[:1] if batch else torch.full((1,), count, dtype=torch.int64, device="cpu")
        self._counts = self._counts.expand(batch).clone()
        self._held = self._held.expand(batch, -1).clone()
        return new

    def _first(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float | None, new: torch.Tensor
    ) -> torch.Tensor:
        """Compute prompts by the sparse kernels. Padding behind a prompt is behind all of its queries."""
        groups = q.shape[1] // k.shape[1]
        grouped = (q, k, v) if groups == 1 else (q.unflatten(1, (-1, groups)), k.unsqueeze(2), v.unsqueeze(2))
        out = attention(self._operand(q), *grouped, scale=scale)
        position = torch.arange(q.shape[2], device="cpu").expand(self._counts.numel(), -1)
        self._counts = self._counts + new
        needed = (position < new[:, None]) & (self._rule.last(position) >= new[:, None])
        self._insert(k, v, position, needed)
        return out if groups == 1 else out.flatten(1, 2)

    def _operand(self, q: torch.Tensor) -> SparseOperand:
        count = q.shape[2]
        if isinstance(self._rule, Rows):
            graph = self._rule.first(count).to(q.device)
            return prepare(graph, precision=PRECISIONS[q.dtype], cache=False)
        return self._patterns.operand(count, count, q, is_causal=True)

    def _next(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float | None, new: torch.Tensor
    ) -> torch.Tensor:
        step = torch.arange(q.shape[2], device="cpu")
        position = self._counts[:, None] + step
        self._insert(k, v, position, (step < new[:, None]).expand_as(position))
        self._counts = self._counts + new
        key, query = self._held[:, None, :], position[:, :, None]
        allowed = (key >= 0) & (key <= query) & self._rule.attends(query, key)
        out = self._dense(q, allowed, scale)
        self._held[self._rule.last(self._held) < self._counts[:, None]] = -1
        return out

    def _insert(self, k: torch.Tensor, v: torch.Tensor, position: torch.Tensor, real: torch.Tensor) -> None:
        """Put those new tokens that are `real` [1 or batch, n] into free slots."""
        wanted = int(((self._held >= 0).sum(1) + real.sum(1)).max()) if real.numel() else 0
        if wanted > self._held.shape[1]:
            more = max(_FEWEST, wanted, 2 * self._held.shape[1]) - self._held.shape[1]
            self._held = F.pad(self._held, (0, more), value=-1)
            self._keys, self._values = (F.pad(x, (0, 0, 0, more)) for x in (self._keys, self._values))
        if not wanted:
            return
        free_first = (self._held >= 0).to(torch.int8).argsort(dim=1, stable=True)
        slots = free_first.gather(1, (real.cumsum(1) - 1).clamp(min=0))
        row, token = real.nonzero(as_tuple=True)
        slot = slots[row, token]
        self._held[row, slot] = position[row, token]
        row, token, slot = (x.to(k.device) for x in (row, token, slot))
        for store, x in ((self._keys, k), (self._values, v)):
            if self._counts.numel() == 1:
                store.index_copy_(2, slot, x.index_select(2, token))
            else:
                store[row, :, slot] = x[row, :, token]

    def _dense(self, q: torch.Tensor, allowed: torch.Tensor, scale: float | None) -> torch.Tensor:
        """Compute attention of new queries to the slots that are `allowed`, [1 or batch, n, slots]."""
        keys, values = self._keys, self._values
        used = allowed.any(1)
        most = int(used.sum(1).max()) if used.numel() else 0
        if not most:
            return values.new_zeros(*q.shape[:3], values.shape[3])
        if 2 * most <= used.shape[1]:  # a copy of the few that are attended to costs less than all scores
            chosen = (~used).to(torch.int8).argsort(dim=1, stable=True)[:, :most]
            allowed = allowed.gather(2, chosen[:, None].expand(-1, allowed.shape[1], -1))
            keys, values = (_slots(x, chosen.to(x.device)) for x in (keys, values))
        has_keys = allowed.any(2)
        allowed = allowed | ~has_keys[..., None]
        groups = q.shape[1] // keys.shape[1]
        mask = None if bool(allowed.all()) else allowed[:, None].repeat(1, 1, groups, 1).to(q.device)
        # Queries that share a head of keys are further queries of that head.
        out = F.scaled_dot_product_attention(
            q.unflatten(1, (-1, groups)).flatten(2, 3), keys, values, attn_mask=mask, scale=scale
        )
        out = out.unflatten(2, (groups, -1)).flatten(1, 2)
        if bool(has_keys.all()):
            return out
        return out.masked_fill(~has_keys[:, None, :, None].to(q.device), 0)


def _kind(x: torch.Tensor) -> str:
    return f"{x.shape[0]} x {x.shape[1]} heads x {x.shape[3]}, {x.dtype} on {x.device}"


def _integers(name: str, value: Any) -> torch.Tensor:
    """Return integers [n] as int64 on the CPU."""
    if not isinstance(value, torch.Tensor):
        if not isinstance(value, (list, tuple)):
            bad_type(name, value, "a list or a tensor of integers")
        value = [check_integer(name, number, 0, "integers, 0 or more") for number in value]
        return torch.tensor(value, dtype=torch.int64, device="cpu")
    check_tensor(name, value, dtypes=(torch.int64, torch.int32), shape=(None,))
    return value.to(device="cpu", dtype=torch.int64)


def _slots(x: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """Return [batch, heads, chosen slots, features] of `x`, for `chosen` [1 or batch, count]."""
    if chosen.shape[0] == 1:
        return x.index_select(2, chosen[0])
    return x.gather(2, chosen[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[3]))
