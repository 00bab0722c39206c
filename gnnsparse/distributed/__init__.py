"""Full graphs on several processes: partitions, exchanges, and operands that layers take as they are."""

from gnnsparse.distributed.cost import WAYS, Choice, Rates, choose_way, known_rates
from gnnsparse.distributed.distribute import distribute
from gnnsparse.distributed.exchange import sum_over_ranks
from gnnsparse.distributed.norm import SharedBatchNorm, share_batch_norm
from gnnsparse.distributed.operand import DistributedOperand
from gnnsparse.distributed.partition import PARTITIONS, Partition, partition_rows
from gnnsparse.distributed.shard import ShardFacts

__all__ = [
    "PARTITIONS",
    "WAYS",
    "Choice",
    "DistributedOperand",
    "Partition",
    "Rates",
    "ShardFacts",
    "SharedBatchNorm",
    "choose_way",
    "distribute",
    "known_rates",
    "partition_rows",
    "share_batch_norm",
    "sum_over_ranks",
]
