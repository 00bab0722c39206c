"""What train.py imports sooner or later; see tests/e2e/launch.py."""

import hydra
import lightning.pytorch
import rich.table
import torch
import torch_geometric.datasets

import gnnsparse.data
import gnnsparse.train
import models

__all__ = ["gnnsparse", "hydra", "lightning", "models", "rich", "torch", "torch_geometric"]
