"""Full graphs on several processes: partitions, exchanges, and operands that layers take as they are.

The names in this package are imported when they are first used: `import gnnsparse` needs few of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gnnsparse.registry import lazy_names

if TYPE_CHECKING:
    from gnnsparse.distributed.api import distribute, measure_rates
    from gnnsparse.distributed.cost import Choice, Rates, choose_way, known_rates
    from gnnsparse.distributed.exchange import gather_ranks, sum_over_ranks, total_of
    from gnnsparse.distributed.operand import DistributedOperand
    from gnnsparse.distributed.partition import Partition, partition_rows
    from gnnsparse.distributed.shard import ShardFacts
    from gnnsparse.distributed.training import share_batch_norm, sum_gradients

__all__ = [
    "Choice",
    "DistributedOperand",
    "Partition",
    "Rates",
    "ShardFacts",
    "choose_way",
    "distribute",
    "gather_ranks",
    "known_rates",
    "measure_rates",
    "partition_rows",
    "share_batch_norm",
    "sum_gradients",
    "sum_over_ranks",
    "total_of",
]

__getattr__ = lazy_names(
    __name__,
    {
        "gnnsparse.distributed.api": ("distribute", "measure_rates"),
        "gnnsparse.distributed.cost": ("Choice", "Rates", "choose_way", "known_rates"),
        "gnnsparse.distributed.exchange": ("gather_ranks", "sum_over_ranks", "total_of"),
        "gnnsparse.distributed.operand": ("DistributedOperand",),
        "gnnsparse.distributed.partition": ("Partition", "partition_rows"),
        "gnnsparse.distributed.shard": ("ShardFacts",),
        "gnnsparse.distributed.training": ("share_batch_norm", "sum_gradients"),
    },
)
