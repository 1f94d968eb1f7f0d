"""Tuning tasks that are trained for real: a trial takes a fraction of a second on one core.

Validation rows choose a setting, test rows judge it. Six of the tasks have data that are made here,
so that no model can have read about them; their descriptions are true and complete. A trial is an
Optuna trial, or anything with its methods `suggest_float`, `suggest_int`, `suggest_categorical` and
`report`. It may raise: the setting has then failed, as settings do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from llmopt.benchmarks.tasks import trained
from llmopt.benchmarks.tasks.trained import Judged


@dataclass(frozen=True)
class StudyTask:
    """A tuning task.

    Attributes:
        train: Suggests a setting by the trial, trains it on the data of a seed, and judges it.
        description: The task in words.
        default: The textbook's setting.
        known: Whether a model may know the data.
        needs: Packages beside scikit-learn.
    """

    train: Callable[[Any, int], Judged]
    description: str
    default: Mapping[str, Any]
    known: bool = True
    needs: tuple[str, ...] = ()


_LEARN = "Smaller is better. Validation rows choose; unseen rows judge in the end. "

STUDIES: dict[str, StudyTask] = {
    "digits": StudyTask(
        trained.digits,
        _LEARN + "Error rate of a classifier of scikit-learn's handwritten digits (64 inputs from "
        "0 to 16, not scaled; 500 rows to learn from). `classifier` is a support vector machine "
        "with an RBF kernel, or a network with one layer trained for 15 epochs by Adam.",
        {"classifier": "svc", "svc_C": 1.0, "svc_gamma": 4.3e-4},
    ),
    "cancer": StudyTask(
        trained.cancer,
        _LEARN + "Logarithmic loss of LightGBM on the breast cancer data of scikit-learn (30 "
        "inputs, 200 rows to learn from). The curve is the validation loss over rounds.",
        {
            "rounds": 100,
            "learning_rate": 0.1,
            "leaves": 31,
            "least_rows_of_a_leaf": 20,
            "l2": 1e-4,
            "columns_of_a_tree": 1.0,
            "rows_of_a_tree": 1.0,
        },
        needs=("lightgbm",),
    ),
    "diabetes": StudyTask(
        trained.diabetes,
        _LEARN + "Mean absolute error on the diabetes data of scikit-learn (10 inputs with a "
        "standard deviation of 0.048, targets from 25 to 346, 200 rows to learn from). `kind` "
        "chooses the regression; the forest has 30 trees.",
        {"kind": "elastic net", "net_alpha": 1.0, "net_l1_ratio": 0.5},
    ),
    "wine": StudyTask(
        trained.wine,
        _LEARN + "Logarithmic loss of LightGBM on the wine data of scikit-learn (13 inputs, three "
        "classes, 60 rows to learn from, of whose labels about one in ten is wrong). `boosting` "
        "'dart' drops trees at random. The curve is the validation loss over rounds.",
        {
            "boosting": "gbdt",
            "rounds": 80,
            "learning_rate": 0.1,
            "leaves": 31,
            "least_rows_of_a_leaf": 20,
            "l2": 1e-4,
        },
        needs=("lightgbm",),
    ),
    "strokes": StudyTask(
        trained.strokes,
        _LEARN + "Error rate of a small convolutional network (PyTorch) on 8 by 8 images of "
        "digits, 400 to learn from, 8 epochs. The curve is the validation error after each epoch. "
        "A training that diverges fails.",
        {
            "channels": 16,
            "dropout": 0.25,
            "rate": 1e-3,
            "weight_decay": 1e-4,
            "batch": 32,
            "optimizer": "adam",
        },
        needs=("torch",),
    ),
    "bearing": StudyTask(
        trained.bearing,
        _LEARN + "Logarithmic loss of a detector of damaged bearings. A record has 2,048 samples "
        "at 4 kHz: noise, mains hum near 50 Hz, and a resonance of the housing between 1,180 and "
        "1,320 Hz. In a damaged bearing the resonance rings in pulses that decay within 3 ms and "
        "come 33 to 37 times a second; in a sound one it rings steadily, about as strong on "
        "average. A band-pass takes the band; `envelope` 'square' squares the band and smooths it "
        "by a moving mean; the logarithms of the first `spectrum_lines` lines of the spectrum "
        "(1.95 Hz apart) go to a logistic regression, 100 records to learn from. A band that ends "
        "above 2,000 Hz fails.",
        {
            "band_low_hz": 10.0,
            "band_width_hz": 1500.0,
            "envelope": "off",
            "spectrum_lines": 128,
            "regularization_C": 1.0,
        },
        known=False,
    ),
    "brewery": StudyTask(
        trained.brewery,
        _LEARN + "Median absolute error of one-hour forecasts of a brewery's electric load, in kW. "
        "Batches follow each other every 17 hours and have the same shape each time; a slow wave "
        "(period about 1,900 hours) and noise of 5 % multiply the load. In 3 % of the hours the "
        "meter shows 3 to 8 times too much; `clip_above_quantile` cuts the inputs at a quantile. "
        "Ridge regression on the latest `recent_lags` hours and on the values 1, 2, ... periods "
        "of `period_hours` ago, of the load or its logarithm, learned from the last "
        "`training_hours` of the first 500. Without any input, or with fewer than 20 rows, "
        "it fails.",
        {
            "recent_lags": 12,
            "period_hours": 24,
            "periods_looked_back": 1,
            "scale": "as it is",
            "clip_above_quantile": 1.0,
            "ridge_alpha": 1.0,
            "training_hours": 500,
        },
        known=False,
    ),
    "orchard": StudyTask(
        trained.orchard,
        _LEARN + "Mean cost of sorting fruit by LightGBM: an ill fruit that is missed costs 10, a "
        "false alarm 1. About 9 % are ill: those on a thin ring in the plane of two of twelve "
        "inputs, if a third one is not small. Of the 600 labels to learn from one in eight is "
        "wrong; the labels of validation and test are right.",
        {
            "loss": "logistic",
            "rounds": 100,
            "learning_rate": 0.1,
            "leaves": 31,
            "least_rows_of_a_leaf": 20,
            "alarm_above_probability": 0.5,
        },
        known=False,
        needs=("lightgbm",),
    ),
    "genes": StudyTask(
        trained.genes,
        _LEARN + "Mean absolute error of predicting a dose (standard deviation about 3) from 600 "
        "genes of 90 patients. The genes move in 30 groups of 20, with noise of one and a half "
        "times the group's own size; 4 groups count. Each gene has units of its own, over a range "
        "of about 1 to 50. `model` is an elastic net, or principal components with ridge.",
        {"scaling": "standard", "model": "elastic net", "net_alpha": 1.0, "net_l1_share": 0.5},
        known=False,
    ),
    "drift": StudyTask(
        trained.drift,
        _LEARN + "Mean absolute error of predicting a stream of 2,400 readings one step ahead from "
        "six inputs (sizes 1, 1, 1, 1, 10, 0.1; noise 0.3). The weights of the first two turn "
        "like a clock's hand, once in about 700 readings; the other four stay at 0.5. `method` is "
        "gradient steps, or recursive least squares that forgets with a half-life. A prediction "
        "that diverges fails. The curve is the error over the latest 200 readings.",
        {
            "method": "gradient",
            "inputs": "as they are",
            "gradient_rate": 0.01,
            "gradient_shrinkage": 1e-6,
        },
        known=False,
    ),
    "gears": StudyTask(
        trained.gears,
        _LEARN + "Mean absolute error of a network (PyTorch, 25 epochs, 500 rows) that predicts "
        "gear noise, sin(4ab) + cos(5c)/2 + d with noise of 0.1, from five inputs between -1 and "
        "1, of which one is idle. The controller holds 3,000 weights: a larger network fails. The "
        "curve is the validation error after each epoch.",
        {
            "layers": 2,
            "width": 32,
            "activation": "relu",
            "rate": 1e-3,
            "weight_decay": 1e-4,
            "batch": 32,
            "optimizer": "adam",
        },
        known=False,
        needs=("torch",),
    ),
}
"""By name."""
