"""TuRBO-1 on BoTorch: Bayesian optimization within a trust region that moves and shrinks."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np

from llmopt.benchmarks.methods.protocol import Problem

_LENGTH, _SHORTEST, _LONGEST = 0.8, 0.5**7, 1.6
_SUCCESSES = 3


class Turbo:
    """TuRBO with one trust region (Eriksson et al. 2019, arXiv 1910.01739, Algorithm 1).

    The constants are those of the paper's supplement D: a Matérn-5/2 Gaussian process fitted to
    standardized rewards, its length scales shaping the region around the best point, and Thompson
    samples over Sobol points that change at most about 20 coordinates. It starts from all warm-up
    points, and again, once the region is too small, from twice as many Sobol points as
    there are parameters. The fit skips points without a reward.
    """

    def __init__(self, problem: Problem, seed: np.random.SeedSequence, batch: int = 4) -> None:
        self._low, self._width, self._n = problem.low, problem.high - problem.low, problem.n
        self._batch = batch
        self._rng = np.random.default_rng(seed)
        self._begin()
        for params, reward in problem.warmup:
            self._keep(np.array(params), reward)
        self._plan: list[np.ndarray] = []
        self._told: list[float | None] = []

    def _begin(self) -> None:
        self._points: list[np.ndarray] = []
        self._rewards: list[float] = []
        self._length = _LENGTH
        self._good = self._bad = 0
        self._before = -math.inf  # the best reward before the step

    def _keep(self, params: np.ndarray, reward: float | None) -> None:
        if reward is not None:
            self._points.append((np.asarray(params, dtype=float) - self._low) / self._width)
            self._rewards.append(reward)

    def ask(self) -> np.ndarray:
        """Return the next point of the step."""
        if not self._plan:
            enough = len(self._points) >= 2
            self._plan = self._propose() if enough else self._sobol(2 * self._n)
            self._told = []
            self._before = max(self._rewards, default=-math.inf)
        return self._low + self._width * self._plan[len(self._told)]

    def tell_failure(self, params: Any, reason: str) -> None:
        """Report that there is no reward."""
        self.tell(params, None)

    def tell(self, params: Any, reward: float | None) -> None:
        """Report the reward; a full step moves and sizes the region."""
        self._told.append(reward)
        self._keep(params, reward)
        if len(self._told) < len(self._plan):
            return
        size, self._plan = len(self._plan), []
        if size != self._batch or self._before == -math.inf:
            return  # the points of a start
        reached = max((r for r in self._told if r is not None), default=-math.inf)
        better = reached > self._before + 1e-3 * abs(self._before)
        self._good, self._bad = (self._good + 1, 0) if better else (0, self._bad + 1)
        if self._good == _SUCCESSES:
            self._length, self._good = min(2 * self._length, _LONGEST), 0
        elif self._bad == math.ceil(max(4, self._n) / self._batch):
            self._length, self._bad = self._length / 2, 0
        if self._length < _SHORTEST:
            self._begin()

    def _sobol(self, count: int) -> list[np.ndarray]:
        import torch

        engine = torch.quasirandom.SobolEngine(self._n, scramble=True, seed=self._number())
        return list(engine.draw(count, dtype=torch.double).numpy())

    def _number(self) -> int:
        return int(self._rng.integers(2**31))

    def _propose(self) -> list[np.ndarray]:
        import torch

        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a fit that stops early, and of scales
            torch.manual_seed(self._number())
            return self._thompson()

    def _thompson(self) -> list[np.ndarray]:
        import gpytorch
        import torch
        from botorch.exceptions import ModelFittingError
        from botorch.fit import fit_gpytorch_mll
        from botorch.generation import MaxPosteriorSampling
        from botorch.models import SingleTaskGP
        from gpytorch.constraints import Interval

        x = torch.tensor(np.array(self._points), dtype=torch.double)
        y = torch.tensor(self._rewards, dtype=torch.double).unsqueeze(-1)
        y = (y - y.mean()) / max(float(y.std()), 1e-12)
        kernel = gpytorch.kernels.ScaleKernel(
            gpytorch.kernels.MaternKernel(
                nu=2.5, ard_num_dims=self._n, lengthscale_constraint=Interval(0.005, 4.0)
            )
        )
        noise = gpytorch.likelihoods.GaussianLikelihood(noise_constraint=Interval(1e-8, 1e-3))
        with gpytorch.settings.max_cholesky_size(float("inf")):
            model = SingleTaskGP(
                x, y, covar_module=kernel, likelihood=noise, outcome_transform=None
            )
            try:
                fit_gpytorch_mll(gpytorch.mlls.ExactMarginalLogLikelihood(noise, model))
            except ModelFittingError:
                model.eval()  # with the scales it has
            center = x[int(y.argmax())]
            weights = kernel.base_kernel.lengthscale.squeeze(0).detach()
            weights = weights / weights.log().mean().exp()
            half = self._length / 2 * weights
            low, high = (center - half).clamp(0, 1), (center + half).clamp(0, 1)
            # Eriksson et al.: min(100 n, 5000); BoTorch's tutorial has at least 2000.
            count = min(5000, max(2000, 200 * self._n))
            engine = torch.quasirandom.SobolEngine(self._n, scramble=True, seed=self._number())
            candidates = low + (high - low) * engine.draw(count, dtype=torch.double)
            changed = torch.rand(count, self._n) <= min(20 / self._n, 1.0)
            none = ~changed.any(dim=1)
            changed[none, torch.randint(self._n, (int(none.sum()),))] = True
            candidates = torch.where(changed, candidates, center)
            with torch.no_grad():
                sampling = MaxPosteriorSampling(model, replacement=False)
                chosen = sampling(candidates, num_samples=self._batch)
        return list(chosen.numpy())
