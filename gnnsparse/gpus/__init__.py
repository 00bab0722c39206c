"""GPUs as data: a record of rates, costs and thresholds for each GPU that was measured.

A record is a JSON file in this folder or in the user's; docs/gpu-records.md says what its numbers mean and
how `gnnsparse bench fit` finds them.
"""

from gnnsparse.gpus.record import (
    GpuRecord,
    RecordError,
    load_record,
    record_for,
    records,
    save_record,
    user_folder,
    using,
)

__all__ = [
    "GpuRecord",
    "RecordError",
    "load_record",
    "record_for",
    "records",
    "save_record",
    "user_folder",
    "using",
]
