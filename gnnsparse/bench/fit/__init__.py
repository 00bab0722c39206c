"""The command `gnnsparse bench fit`, which measures a GPU and writes its record
(gnnsparse.plan.gpu_records).
"""
