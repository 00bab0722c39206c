"""Full graphs on several processes: partitions, exchanges, and operands that layers take as they are."""

from gnnsparse.distributed.api import distribute
from gnnsparse.distributed.cost import WAYS, Choice, Rates, choose_way, known_rates
from gnnsparse.distributed.exchange import gather_ranks, sum_over_ranks
from gnnsparse.distributed.functions import total_of
from gnnsparse.distributed.measure import measure_rates
from gnnsparse.distributed.norm import SharedBatchNorm, share_batch_norm
from gnnsparse.distributed.operand import DistributedOperand
from gnnsparse.distributed.partition import PARTITIONS, Partition, partition_rows
from gnnsparse.distributed.peers import Peers
from gnnsparse.distributed.shard import ShardFacts
from gnnsparse.distributed.training import RowGather, step_seed, sum_gradients

__all__ = [
    "PARTITIONS",
    "WAYS",
    "Choice",
    "DistributedOperand",
    "Partition",
    "Peers",
    "Rates",
    "RowGather",
    "ShardFacts",
    "SharedBatchNorm",
    "choose_way",
    "distribute",
    "gather_ranks",
    "known_rates",
    "measure_rates",
    "partition_rows",
    "share_batch_norm",
    "step_seed",
    "sum_gradients",
    "sum_over_ranks",
    "total_of",
]
