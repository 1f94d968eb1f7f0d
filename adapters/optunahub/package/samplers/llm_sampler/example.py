"""Hyper-parameters of a classifier, proposed by a language model that runs on this machine.

Run it in a checkout of the registry, or of llmopt's ``adapters/optunahub``. The embedded
model needs no key; any other is a string, such as ``model="openai:gpt-6-luna"``.
"""

from __future__ import annotations

import optuna
import optunahub
from sklearn.datasets import load_wine
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC


X, y = load_wine(return_X_y=True)


def objective(trial: optuna.Trial) -> float:
    """Return the cross-validated accuracy of one support vector machine."""
    kernel = trial.suggest_categorical("kernel", ["rbf", "poly"])
    c = trial.suggest_float("C", 1e-3, 1e3, log=True)
    gamma = trial.suggest_float("gamma", 1e-4, 10.0, log=True)
    degree = trial.suggest_int("degree", 2, 5) if kernel == "poly" else 3
    model = make_pipeline(StandardScaler(), SVC(kernel=kernel, C=c, gamma=gamma, degree=degree))
    return float(cross_val_score(model, X, y, cv=3).mean())


if __name__ == "__main__":
    module = optunahub.load_local_module("samplers/llm_sampler", registry_root="./package")
    sampler = module.LLMSampler(
        description="Cross-validated accuracy of a support vector machine on the wine data", seed=0
    )
    study = optuna.create_study(direction="maximize", sampler=sampler)
    study.optimize(objective, n_trials=30)
    print(study.best_trial.value, study.best_trial.params)
    print(sampler.usage)
