"""Trained models from checkpoints, and their predictions."""

from gnnsparse.inference.loading import LoadedModel, LoadError, Prediction, load
from gnnsparse.inference.predictor import Predictor

__all__ = ["LoadError", "LoadedModel", "Prediction", "Predictor", "load"]
