"""Trained models from checkpoints, and their predictions."""

from gnnsparse.inference.loading import LoadError, load
from gnnsparse.inference.predictor import Predictor
from gnnsparse.train.trained import LoadedModel, Prediction

__all__ = ["LoadError", "LoadedModel", "Prediction", "Predictor", "load"]
