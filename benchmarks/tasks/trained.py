"""What the tuning tasks of `llmopt.benchmarks.tasks.studies` train: data, models, judgement."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray
Rows = tuple[Array, Array]


@dataclass(frozen=True)
class Judged:
    """What a trained setting is worth; the smaller, the better.

    Attributes:
        valid: On the validation rows, which choose.
        test: On the test rows, which judge.
        said: What a practitioner would note.
    """

    valid: float
    test: float
    said: str = ""


@dataclass(frozen=True)
class Split:
    """Rows to learn from, to choose by and to judge by, each inputs and targets."""

    train: Rows
    valid: Rows
    test: Rows

    @classmethod
    def of(cls, x: Array, y: Array, seed: int, rows: tuple[int, int]) -> Split:
        """Split rows at random into some to learn from, some to choose by, and the rest."""
        order = np.random.default_rng([seed, 7]).permutation(len(y))
        x, y = x[order], y[order]
        a, b = rows[0], rows[0] + rows[1]
        return cls((x[:a], y[:a]), (x[a:b], y[a:b]), (x[b:], y[b:]))

    def judge(self, loss: Callable[[Array, Array], float], said: str = "") -> Judged:
        """Judge by a function of inputs and targets."""
        return Judged(float(loss(*self.valid)), float(loss(*self.test)), said)


def error_rate(model: Any) -> Callable[[Array, Array], float]:
    """Return the share of a classifier's rows that are wrong, of inputs and targets."""
    return lambda x, y: float(np.mean(model.predict(x) != y))


def absolute_error(model: Any) -> Callable[[Array, Array], float]:
    """Return a regression's mean absolute error, of inputs and targets."""
    return lambda x, y: float(np.mean(np.abs(model.predict(x) - y)))


@functools.cache
def _bundled(name: str) -> Rows:
    from sklearn import datasets

    x, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    return x, y


# -- known data ---------------------------------------------------------------------------


def digits(trial: Any, seed: int) -> Judged:
    """Support vectors or a network, each with its own parameters."""
    from sklearn.neural_network import MLPClassifier
    from sklearn.svm import SVC

    split = Split.of(*_bundled("digits"), seed, (500, 400))
    if trial.suggest_categorical("classifier", ["svc", "mlp"]) == "svc":
        model = SVC(
            C=trial.suggest_float("svc_C", 1e-2, 1e3, log=True),
            gamma=trial.suggest_float("svc_gamma", 1e-6, 1e-1, log=True),
        ).fit(*split.train)
        return split.judge(error_rate(model), f"{len(model.support_)} support vectors of 500 rows")
    model = MLPClassifier(
        (trial.suggest_int("mlp_units", 4, 128, log=True),),
        learning_rate_init=trial.suggest_float("mlp_rate", 1e-4, 1e-1, log=True),
        alpha=trial.suggest_float("mlp_alpha", 1e-6, 1e1, log=True),
        random_state=seed,
    )
    for epoch in range(1, 16):
        model.partial_fit(*split.train, classes=np.arange(10))
        if epoch % 3 == 0:
            trial.report(error_rate(model)(*split.valid), epoch)
    return split.judge(error_rate(model))


def cancer(trial: Any, seed: int) -> Judged:
    """Gradient boosting with a curve over rounds."""
    split = Split.of(*_bundled("breast_cancer"), seed, (200, 150))
    model = boosted(
        seed,
        n_estimators=trial.suggest_int("rounds", 10, 150, log=True),
        learning_rate=trial.suggest_float("learning_rate", 1e-3, 1.0, log=True),
        num_leaves=trial.suggest_int("leaves", 2, 63, log=True),
        min_child_samples=trial.suggest_int("least_rows_of_a_leaf", 1, 80, log=True),
        reg_lambda=trial.suggest_float("l2", 1e-4, 100.0, log=True),
        colsample_bytree=trial.suggest_float("columns_of_a_tree", 0.1, 1.0),
        subsample=trial.suggest_float("rows_of_a_tree", 0.2, 1.0),
        subsample_freq=1,
    )
    model.fit(*split.train, eval_set=[split.valid])
    _report_rounds(trial, model)
    return split.judge(log_loss_of(model))


def log_loss_of(model: Any) -> Callable[[Array, Array], float]:
    """Return a classifier's logarithmic loss, of inputs and targets."""
    from sklearn.metrics import log_loss

    return lambda x, y: float(log_loss(y, model.predict_proba(x), labels=model.classes_))


def diabetes(trial: Any, seed: int) -> Judged:
    """Four kinds of regression, each with its own parameters."""
    from sklearn.ensemble import RandomForestRegressor
    from sklearn.kernel_ridge import KernelRidge
    from sklearn.linear_model import ElasticNet
    from sklearn.svm import SVR

    split = Split.of(*_bundled("diabetes"), seed, (200, 120))
    kind = trial.suggest_categorical("kind", ["elastic net", "kernel ridge", "svr", "forest"])
    if kind == "elastic net":
        model = ElasticNet(
            alpha=trial.suggest_float("net_alpha", 1e-4, 10.0, log=True),
            l1_ratio=trial.suggest_float("net_l1_ratio", 0.0, 1.0),
        )
    elif kind == "kernel ridge":
        model = KernelRidge(
            alpha=trial.suggest_float("ridge_alpha", 1e-3, 100.0, log=True),
            kernel="rbf",
            gamma=trial.suggest_float("ridge_gamma", 1e-3, 100.0, log=True),
        )
    elif kind == "svr":
        model = SVR(
            C=trial.suggest_float("svr_C", 0.1, 1e4, log=True),
            epsilon=trial.suggest_float("svr_epsilon", 0.1, 100.0, log=True),
            gamma=trial.suggest_float("svr_gamma", 1e-3, 100.0, log=True),
        )
    else:
        model = RandomForestRegressor(
            30,
            max_depth=trial.suggest_int("forest_depth", 1, 16),
            min_samples_leaf=trial.suggest_int("forest_leaf", 1, 50, log=True),
            max_features=trial.suggest_float("forest_features", 0.1, 1.0),
            random_state=seed,
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(*split.train)
    return split.judge(absolute_error(model))


def wine(trial: Any, seed: int) -> Judged:
    """Boosted trees on few rows, of whose labels one in ten is wrong."""
    rng = np.random.default_rng([seed, 3])
    split = Split.of(*_bundled("wine"), seed, (60, 60))
    labels = split.train[1].copy()
    wrong = rng.random(len(labels)) < 0.1
    labels[wrong] = rng.integers(0, 3, wrong.sum())
    boosting = trial.suggest_categorical("boosting", ["gbdt", "dart"])
    options: dict[str, Any] = {"boosting_type": boosting}
    if boosting == "dart":
        options["drop_rate"] = trial.suggest_float("dart_drop_rate", 0.01, 0.9)
        options["skip_drop"] = trial.suggest_float("dart_skip_drop", 0.0, 1.0)
    model = boosted(
        seed,
        n_estimators=trial.suggest_int("rounds", 5, 80, log=True),
        learning_rate=trial.suggest_float("learning_rate", 1e-3, 1.0, log=True),
        num_leaves=trial.suggest_int("leaves", 2, 31, log=True),
        min_child_samples=trial.suggest_int("least_rows_of_a_leaf", 1, 30, log=True),
        reg_lambda=trial.suggest_float("l2", 1e-4, 100.0, log=True),
        **options,
    )
    model.fit(split.train[0], labels, eval_set=[split.valid])
    _report_rounds(trial, model)
    return split.judge(log_loss_of(model))


def boosted(seed: int, *, regression: bool = False, **options: Any) -> Any:
    """Return LightGBM's model on one core, which says nothing."""
    import lightgbm

    kind = lightgbm.LGBMRegressor if regression else lightgbm.LGBMClassifier
    return kind(random_state=seed, n_jobs=1, verbose=-1, **options)


def _report_rounds(trial: Any, model: Any) -> None:
    (losses,) = model.evals_result_["valid_0"].values()
    for step in np.unique(np.linspace(1, len(losses), 6).astype(int)):
        trial.report(float(losses[step - 1]), int(step))


def strokes(trial: Any, seed: int) -> Judged:
    """A convolutional network on 8 by 8 digits."""
    import torch
    from torch import nn

    torch.manual_seed(seed)
    torch.set_num_threads(1)
    x, y = _bundled("digits")
    split = Split.of(x.reshape(-1, 1, 8, 8).astype(np.float32) / 16, y, seed, (400, 400))
    channels = trial.suggest_int("channels", 2, 32, log=True)
    dropout = trial.suggest_float("dropout", 0.0, 0.8)
    network = nn.Sequential(
        nn.Conv2d(1, channels, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(dropout),
        nn.Linear(channels * 16, 10),
    )
    return _train_torch(trial, network, split, epochs=8, loss=nn.CrossEntropyLoss())


def _train_torch(trial: Any, network: Any, split: Split, epochs: int, loss: Any) -> Judged:
    """Train a network by one of two optimizers, with a curve over epochs."""
    import torch

    rate = trial.suggest_float("rate", 1e-4, 1.0, log=True)
    decay = trial.suggest_float("weight_decay", 1e-6, 1e-1, log=True)
    batch = trial.suggest_int("batch", 8, 128, log=True)
    if trial.suggest_categorical("optimizer", ["sgd", "adam"]) == "sgd":
        momentum = trial.suggest_float("sgd_momentum", 0.0, 0.99)
        optimizer: Any = torch.optim.SGD(
            network.parameters(), rate, momentum=momentum, weight_decay=decay
        )
    else:
        optimizer = torch.optim.Adam(network.parameters(), rate, weight_decay=decay)
    classes = split.train[1].dtype.kind == "i"
    x, y = (torch.from_numpy(part) for part in split.train)

    def judged(x: Array, y: Array) -> float:
        network.eval()
        with torch.no_grad():
            out = network(torch.from_numpy(x)).numpy()
        network.train()
        if not np.isfinite(out).all():
            raise FloatingPointError("the weights became infinite: the training diverged")
        if classes:
            return float(np.mean(out.argmax(1) != y))
        return float(np.mean(np.abs(out - y)))

    order = torch.Generator().manual_seed(0)
    for epoch in range(1, epochs + 1):
        for rows in torch.randperm(len(y), generator=order).split(batch):
            optimizer.zero_grad()
            loss(network(x[rows]), y[rows]).backward()
            optimizer.step()
        trial.report(judged(*split.valid), epoch)
    size = sum(p.numel() for p in network.parameters())
    return split.judge(judged, f"{size:,} weights")


# -- data that are made here --------------------------------------------------------------


@functools.cache
def _vibration(seed: int) -> tuple[Array, Array]:
    """Return 420 records of a bearing (2,048 samples at 4 kHz), and whether each is damaged."""
    rng = np.random.default_rng([seed, 21])
    time = np.arange(2048) / 4000
    damaged = rng.random(420) < 0.5
    records = rng.normal(0, 1.0, (420, 2048))
    for row, bad in zip(records, damaged, strict=True):
        row += 1.5 * np.sin(2 * np.pi * rng.uniform(48, 52) * time + rng.uniform(0, 6.3))
        tone = np.sin(2 * np.pi * rng.uniform(1180, 1320) * time)
        phase = (time * rng.uniform(33, 37) + rng.uniform()) % 1
        pulse = np.exp(-phase / 35 / 0.003) if bad else np.full_like(time, 0.105)
        row += 2.0 * pulse * tone
    return records, damaged.astype(int)


def bearing(trial: Any, seed: int) -> Judged:
    """A pipeline: band-pass, envelope, spectrum, classifier."""
    from scipy.signal import butter, sosfiltfilt
    from sklearn.linear_model import LogisticRegression

    low = trial.suggest_float("band_low_hz", 10.0, 1800.0, log=True)
    width = trial.suggest_float("band_width_hz", 10.0, 1500.0, log=True)
    envelope = trial.suggest_categorical("envelope", ["off", "square"])
    if envelope == "square":
        smooth = trial.suggest_float("envelope_smoothing_ms", 0.3, 100.0, log=True)
    lines = trial.suggest_int("spectrum_lines", 4, 256, log=True)
    strength = trial.suggest_float("regularization_C", 1e-4, 100.0, log=True)
    if low + width >= 2000:
        raise ValueError("the band ends above half the sampling rate (2,000 Hz)")
    records, damaged = _vibration(seed)
    band = sosfiltfilt(butter(2, [low, low + width], "bandpass", fs=4000, output="sos"), records)
    if envelope == "square":
        count = max(1, round(smooth * 4))
        kernel = np.ones(count) / count
        band = np.apply_along_axis(lambda r: np.convolve(r, kernel, "same"), 1, band**2)
        band -= band.mean(axis=1, keepdims=True)
    power = np.log(np.abs(np.fft.rfft(band))[:, 1 : lines + 1] + 1e-9)
    split = Split.of(power, damaged, seed, (100, 120))
    mean, spread = split.train[0].mean(0), split.train[0].std(0) + 1e-9
    parts = [((x - mean) / spread, y) for x, y in (split.train, split.valid, split.test)]
    split = Split(*parts)
    model = LogisticRegression(C=strength, max_iter=200).fit(*split.train)
    return split.judge(
        log_loss_of(model), f"error on learned rows {error_rate(model)(*split.train):.3f}"
    )


@functools.cache
def _brewery(seed: int) -> Array:
    """Return 900 hourly loads: shifts of 17 hours, a trend, spikes of a faulty meter."""
    rng = np.random.default_rng([seed, 22])
    hours = np.arange(900)
    load: Array
    shape = rng.normal(0, 1, 17).cumsum()
    load = 40 * np.exp(0.25 * (shape - shape.mean()) / shape.std())[hours % 17]
    load *= np.exp(0.3 * np.sin(hours / 300)) * np.exp(rng.normal(0, 0.05, 900))
    spikes = rng.random(900) < 0.03
    load[spikes] *= rng.uniform(3, 8, spikes.sum())
    return load


def brewery(trial: Any, seed: int) -> Judged:
    """Forecast a load by ridge regression on its own past."""
    from sklearn.linear_model import Ridge

    lags = trial.suggest_int("recent_lags", 0, 12)
    period = trial.suggest_int("period_hours", 2, 48)
    cycles = trial.suggest_int("periods_looked_back", 0, 8)
    scale = trial.suggest_categorical("scale", ["as it is", "logarithm"])
    clip = trial.suggest_float("clip_above_quantile", 0.8, 1.0)
    alpha = trial.suggest_float("ridge_alpha", 1e-3, 1e4, log=True)
    memory = trial.suggest_int("training_hours", 60, 500, log=True)
    if not lags and not cycles:
        raise ValueError("no inputs: recent_lags and periods_looked_back are both 0")
    raw = _brewery(seed)
    seen = np.minimum(raw, np.quantile(raw[:500], clip))
    seen = np.log(seen) if scale == "logarithm" else seen
    places = [*range(1, lags + 1), *(period * k for k in range(1, cycles + 1))]
    start = max(places)
    inputs = np.stack([seen[start - k : len(seen) - k] for k in places], axis=1)
    target = seen[start:]
    first, last = max(0, 500 - memory - start), 500 - start
    if last - first < 20:
        raise ValueError(f"only {max(0, last - first)} training rows are left")
    model = Ridge(alpha).fit(inputs[first:last], target[first:last])
    forecast = model.predict(inputs)
    forecast = np.exp(np.clip(forecast, -20, 20)) if scale == "logarithm" else forecast
    # Spikes of the meter are no load: the median error forgives them.
    missed = np.abs(forecast - raw[start:])
    valid, test = missed[500 - start : 700 - start], missed[700 - start :]
    return Judged(float(np.median(valid)), float(np.median(test)))


@functools.cache
def _orchard(seed: int) -> Split:
    """Return fruit: 9 % are ill, one label of eight is wrong where learned, two inputs count."""
    rng = np.random.default_rng([seed, 23])
    x = rng.normal(0, 1, (1600, 12))
    ring = x[:, 0] ** 2 + x[:, 1] ** 2
    ill = (np.abs(ring - 2.2) < 0.42) & (x[:, 2] > -0.6)
    y = ill.astype(int)
    split = Split.of(x, y, seed, (600, 400))
    wrong = rng.random(600) < 0.125
    labels = np.where(wrong, 1 - split.train[1], split.train[1])
    return Split((split.train[0], labels), split.valid, split.test)


def orchard(trial: Any, seed: int) -> Judged:
    """Find ill fruit among many sound ones: a miss costs ten, a false alarm one."""
    split = _orchard(seed)
    loss = trial.suggest_categorical("loss", ["logistic", "focal by weight"])
    weight = 1.0
    if loss == "focal by weight":
        weight = trial.suggest_float("weight_of_the_ill", 0.2, 50.0, log=True)
    model = boosted(
        seed,
        n_estimators=trial.suggest_int("rounds", 5, 120, log=True),
        learning_rate=trial.suggest_float("learning_rate", 0.005, 1.0, log=True),
        num_leaves=trial.suggest_int("leaves", 2, 64, log=True),
        min_child_samples=trial.suggest_int("least_rows_of_a_leaf", 1, 150, log=True),
        class_weight={0: 1.0, 1: weight},
    ).fit(*split.train)
    threshold = trial.suggest_float("alarm_above_probability", 0.01, 0.9, log=True)

    def alarms(x: Array) -> Array:
        raised: Array = np.asarray(model.predict_proba(x))[:, 1] > threshold
        return raised

    def cost(x: Array, y: Array) -> float:
        alarm = alarms(x)
        return float(np.mean(np.where(y == 1, 10.0 * ~alarm, 1.0 * alarm)))

    return split.judge(cost, f"alarms on {alarms(split.valid[0]).mean():.0%} of the fruit")


@functools.cache
def _genes(seed: int) -> Split:
    """Return 90 patients with 600 genes in 30 groups that move together; 4 groups count."""
    rng = np.random.default_rng([seed, 24])
    groups = rng.normal(0, 1, (330, 30))
    x = np.repeat(groups, 20, axis=1) + rng.normal(0, 1.5, (330, 600))
    y = groups[:, :4] @ np.array([2.0, -1.5, 1.0, 1.0]) + rng.normal(0, 1.0, 330)
    x *= np.exp(rng.normal(0, 1, 600))  # each gene in its own units
    return Split.of(x, y, seed, (90, 90))


def genes(trial: Any, seed: int) -> Judged:
    """Few patients, many genes: components or sparse weights."""
    from sklearn.decomposition import PCA
    from sklearn.linear_model import ElasticNet, Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    split = _genes(seed)
    steps: list[Any] = []
    if trial.suggest_categorical("scaling", ["none", "standard"]) == "standard":
        steps.append(StandardScaler())
    if trial.suggest_categorical("model", ["elastic net", "components"]) == "components":
        steps.append(PCA(trial.suggest_int("components", 1, 80, log=True), random_state=0))
        steps.append(Ridge(trial.suggest_float("ridge_alpha", 1e-2, 1e5, log=True)))
    else:
        alpha = trial.suggest_float("net_alpha", 1e-3, 100.0, log=True)
        share = trial.suggest_float("net_l1_share", 0.01, 1.0)
        steps.append(ElasticNet(alpha=alpha, l1_ratio=share, max_iter=300))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = make_pipeline(*steps).fit(*split.train)
    learned = absolute_error(model)(*split.train)
    return split.judge(absolute_error(model), f"mean error on learned patients {learned:.3f}")


@functools.cache
def _drift(seed: int) -> Rows:
    """Return a stream of 2,400 readings whose weights turn once in about 700."""
    rng = np.random.default_rng([seed, 25])
    time = np.arange(2400)
    angle = 2 * np.pi * time / 700 + rng.uniform(0, 6.3)
    x = rng.normal(0, 1, (2400, 6)) * np.array([1, 1, 1, 1, 10, 0.1])
    weights = np.stack([np.cos(angle), np.sin(angle), *np.ones((4, 2400)) * 0.5], axis=1)
    y = (x * weights).sum(axis=1) + rng.normal(0, 0.3, 2400)
    return x, y


def drift(trial: Any, seed: int) -> Judged:
    """Predict a stream one step ahead: gradient steps or recursive least squares."""
    x, y = _drift(seed)
    method = trial.suggest_categorical("method", ["gradient", "recursive least squares"])
    scale = trial.suggest_categorical("inputs", ["as they are", "scaled"])
    if scale == "scaled":
        x = x / x[:200].std(axis=0)
    weights = np.zeros(6)
    missed = np.zeros(len(y))
    if method == "gradient":
        rate = trial.suggest_float("gradient_rate", 1e-5, 1.0, log=True)
        shrink = trial.suggest_float("gradient_shrinkage", 1e-6, 0.1, log=True)
    else:
        half = trial.suggest_float("half_life_readings", 3.0, 3000.0, log=True)
        keep, spread = 0.5 ** (1 / half), np.eye(6) * 100.0
    for i, (row, value) in enumerate(zip(x, y, strict=True)):
        error = value - row @ weights
        missed[i] = abs(error)
        if method == "gradient":
            weights = (1 - shrink) * weights + rate * error * row
            if not np.isfinite(error) or abs(error) > 1e6:
                raise FloatingPointError(f"the prediction diverged at reading {i}")
        else:
            gain = spread @ row / (keep + row @ spread @ row)
            weights = weights + gain * error
            spread = (spread - np.outer(gain, row @ spread)) / keep
        if i in (300, 600, 900, 1200):
            trial.report(float(missed[i - 200 : i].mean()), i)
    return Judged(float(missed[300:1200].mean()), float(missed[1200:].mean()))


@functools.cache
def _gears(seed: int) -> Split:
    """Return gear noise: a sum of two waves in a ratio of speeds, in inputs of many sizes."""
    rng = np.random.default_rng([seed, 26])
    x = rng.uniform(-1, 1, (1200, 5)).astype(np.float32)
    y = np.sin(4 * x[:, 0] * x[:, 1]) + 0.5 * np.cos(5 * x[:, 2]) + x[:, 3]
    y = y + rng.normal(0, 0.1, 1200)
    return Split.of(x, y[:, None].astype(np.float32), seed, (500, 300))


def gears(trial: Any, seed: int) -> Judged:
    """A network that must fit into a controller of 3,000 weights."""
    import torch
    from torch import nn

    torch.manual_seed(seed)
    torch.set_num_threads(1)
    depth = trial.suggest_int("layers", 1, 4)
    width = trial.suggest_int("width", 4, 128, log=True)
    bend = trial.suggest_categorical("activation", ["relu", "tanh"])
    layers: list[Any] = []
    size = 5
    for _ in range(depth):
        layers += [nn.Linear(size, width), nn.ReLU() if bend == "relu" else nn.Tanh()]
        size = width
    network = nn.Sequential(*layers, nn.Linear(size, 1))
    weights = sum(p.numel() for p in network.parameters())
    if weights > 3000:
        raise MemoryError(f"{weights:,} weights, and the controller holds 3,000")
    return _train_torch(trial, network, _gears(seed), epochs=25, loss=nn.MSELoss())
