"""`gnnsparse predict`: the predictions of a trained model on a data set, as a file."""

from gnnsparse.inference.predict.files import ENDINGS, write_predictions
from gnnsparse.inference.predict.predict import Predictions, predict_dataset, predict_run

__all__ = ["ENDINGS", "Predictions", "predict_dataset", "predict_run", "write_predictions"]
