"""Reward functions as code: written by a model, trained under, judged without."""

from llmopt.code.reward.reward import improve_reward, reward_function, train_linear

__all__ = [
    "improve_reward",
    "reward_function",
    "train_linear",
]
