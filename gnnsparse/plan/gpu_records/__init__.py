"""Records of GPUs: rates, costs and thresholds of each kind of GPU that was measured.

A record is a JSON file in this folder or in a folder of the user's; notes/gpu-records.md says what its
numbers mean and how `gnnsparse bench fit` finds them.
"""

from gnnsparse.plan.gpu_records.record import (
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
    "GpuRecord", "RecordError", "load_record", "record_for", "records", "save_record", "user_folder", "using",
]  # fmt: skip
