"""`gnnsparse predict`: the predictions of a trained model on a data set, as a file."""

from gnnsparse.prediction.files import ENDINGS, write_predictions
from gnnsparse.prediction.predict import Predictions, predict_dataset, predict_run

__all__ = ["ENDINGS", "Predictions", "predict_dataset", "predict_run", "write_predictions"]
