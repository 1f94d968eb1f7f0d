"""Optuna: hyper-parameters of a scikit-learn model, with words beside each value.

The space is conditional: only a polynomial kernel has a degree. The objective trains a support
vector machine in five folds, reports a curve, and says what it saw: the spread of the folds, the
training error, the share of support vectors. Chat models read these words; the embedded model,
which is asked by default, reads numbers only.

    python optuna_sklearn.py                  # the embedded model, 30 trials: a minute
    python optuna_sklearn.py openai:NAME      # a hosted model; its key is in the environment
    python optuna_sklearn.py --quick          # 20 trials
"""

import sys

import numpy as np
import optuna
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import StratifiedKFold, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from llmopt.adapters.optuna import LLMSampler

INPUTS, LABELS = load_breast_cancer(return_X_y=True)


def objective(trial: optuna.Trial) -> float:
    kernel = trial.suggest_categorical("kernel", ["rbf", "poly"])
    machine = SVC(
        C=trial.suggest_float("C", 1e-3, 1e3, log=True),
        gamma=trial.suggest_float("gamma", 1e-5, 1.0, log=True),
        kernel=kernel,
        degree=trial.suggest_int("degree", 2, 5) if kernel == "poly" else 3,
    )
    found = cross_validate(
        make_pipeline(StandardScaler(), machine),
        INPUTS,
        LABELS,
        cv=StratifiedKFold(5, shuffle=True, random_state=0),
        return_train_score=True,
        return_estimator=True,
    )
    errors, training = 1 - found["test_score"], 1 - found["train_score"]
    for fold in range(5):  # a curve, which the model is shown: here the error after each fold
        trial.report(float(errors[: fold + 1].mean()), fold)
    support = np.mean([model[-1].n_support_.sum() for model in found["estimator"]])
    trial.set_user_attr("stderr", float(np.std(errors, ddof=1) / np.sqrt(len(errors))))
    trial.set_user_attr(
        "feedback",
        f"error in the folds {errors.min():.3f} to {errors.max():.3f}, on training data "
        f"{training.mean():.3f}; {support / (0.8 * len(LABELS)):.0%} are support vectors",
    )
    return float(errors.mean())


if __name__ == "__main__":
    quick = "--quick" in sys.argv
    names = [word for word in sys.argv[1:] if not word.startswith("--")]
    sampler = LLMSampler(
        names[0] if names else None,
        description="Error of a support vector machine on 569 tumours, 30 scaled features.",
        n_startup_trials=4 if quick else 10,
        seed=0,
    )
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=sampler)
    study.optimize(objective, n_trials=20 if quick else 30)
    print(f"smallest error {study.best_value:.4f} with {study.best_params}")
    print(f"said by the best trial: {study.best_trial.user_attrs['feedback']}")
    print(f"points from: {sampler.usage.proposals}")
