"""Data sets of a user's own files: `dataset=custom` of train.py."""

from gnnsparse.data.custom.load import CUSTOM_FORMATS, load_custom
from gnnsparse.data.custom.pyg import dataset_of_pyg

__all__ = ["CUSTOM_FORMATS", "dataset_of_pyg", "load_custom"]
