"""Nevergrad optimizers that ask a language model: importing this registers them."""

try:
    from llmopt.adapters.nevergrad.optimizer import LLM, ParametrizedLLM
except ModuleNotFoundError as error:
    if error.name != "nevergrad":
        raise
    raise ImportError(
        'llmopt.adapters.nevergrad needs Nevergrad: pip install "llmopt[nevergrad]"',
        name="nevergrad",
    ) from error

__all__ = ["LLM", "ParametrizedLLM"]
