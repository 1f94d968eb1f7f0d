"""Nevergrad optimizers that ask a language model: importing this registers them."""

from llmopt.errors import install_hint

try:
    from llmopt.adapters.nevergrad.optimizer import LLM, ParametrizedLLM
except ModuleNotFoundError as error:
    if error.name != "nevergrad":
        raise
    raise ImportError(
        f"llmopt.adapters.nevergrad needs Nevergrad: {install_hint('nevergrad')}", name="nevergrad"
    ) from error

__all__ = ["LLM", "ParametrizedLLM"]
