"""Packages that a benchmark may lack, and the extra of llmopt that brings each."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from importlib import metadata
from importlib.util import find_spec

from llmopt._version import __version__
from llmopt.errors import LLMOptError, install_hint

_EXTRAS = {
    "rivals": ("baybe", "botorch", "torch"),
    "bench": ("cma", "matplotlib", "scipy", "tqdm"),
    "experiments": ("cmaes", "ioh", "lightgbm", "sklearn"),
    "optuna": ("optuna",),
}
_VERSIONED = (
    "gymnasium mujoco numpy cma nevergrad optuna cmaes torch botorch baybe xllamacpp".split()
)


def require_packages(purpose: str, packages: Sequence[str]) -> None:
    """Raise if a package is missing; the message names the extras that bring it.

    `purpose` says what needs the packages, as the first words of the message.
    """
    missing = [name for name in packages if find_spec(name) is None]
    if not missing:
        return
    extra_of = {name: extra for extra, names in _EXTRAS.items() for name in names}
    extras = ",".join(dict.fromkeys(extra_of[name] for name in missing if name in extra_of))
    others = [name for name in missing if name not in extra_of]
    command = install_hint(extras) if extras else "pip install"
    raise LLMOptError(
        f"{purpose} needs {' and '.join(missing)}, not installed here: "
        f"{' '.join([command, *others])}"
    )


def package_versions() -> dict[str, str]:
    """Return the versions of Python, llmopt and the packages on which results depend."""
    versions = {"python": platform.python_version(), "llmopt": __version__}
    for name in _VERSIONED:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions
