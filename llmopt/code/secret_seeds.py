"""The initial states of a search over code, with seeds derived from a secret.

An episode's seed determines all random numbers of an environment. Code that knew it could rebuild
the generator and predict the episode. Therefore the seeds come from a secret that neither a prompt
nor a worker sees; the model knows initial states only by their index.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np

from llmopt.errors import StorageError

_BITS = 128
_STREAMS = {"selection": 0, "held-out": 1}


@dataclass(frozen=True)
class Starts:
    """Seeds of initial states: a selection set to compare code, and a held-out set to report.

    Attributes:
        secret: Source of the seeds, together with `seed`; ``None`` for the seeds 0, 2, 4, ... and
            1, 3, 5, ... of older recordings without a secret.
        seed: Derives other seeds from the same secret.
        words: 32-bit words of a seed. More than one cannot be guessed by brute force, but not every
            environment accepts such a large seed (`fit`).
    """

    secret: int | None = field(repr=False)
    seed: int = 0
    words: int = 4

    @classmethod
    def draw(cls, seed: int = 0) -> Starts:
        """Return seeds from a new secret."""
        return cls(secrets.randbits(_BITS), seed)

    def fit(self, env: gym.Env[Any, Any]) -> Starts:
        """Return seeds that an environment accepts: of one word if it rejects larger ones."""
        if self.secret is None:
            return self
        try:
            env.reset(seed=1 << (32 * self.words - 1))
        except Exception:
            return Starts(self.secret, self.seed, 1)
        return self

    def selection(self, count: int) -> list[int]:
        """Return the seeds of the initial states on which candidates are compared."""
        return self._seeds("selection", count)

    def held_out(self, count: int) -> list[int]:
        """Return the seeds of held-out initial states; a larger `count` extends the list."""
        return self._seeds("held-out", count)

    def _seeds(self, purpose: str, count: int) -> list[int]:
        key = _STREAMS[purpose]
        if self.secret is None:
            return [2 * k + key for k in range(count)]
        found: list[int] = []
        for k in range(count):
            source = np.random.SeedSequence(self.secret, spawn_key=(self.seed, key, k))
            words = [int(word) for word in source.generate_state(self.words)]
            # 31 bits: the maximum of C libraries. The last bit separates the two purposes.
            words[-1] = (words[-1] >> 1) & ~1 | key if self.words == 1 else words[-1]
            found.append(sum(word << (32 * place) for place, word in enumerate(words)))
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return the data to store in a file."""
        secret = None if self.secret is None else f"{self.secret:x}"
        return {"secret": secret, "seed": self.seed, "words": self.words}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Starts:
        """Restore the result of `to_dict`; raise `StorageError` for anything else."""
        secret, seed, words = (data.get(name) for name in ("secret", "seed", "words"))
        sound = isinstance(secret, str) and 0 < len(secret) <= _BITS // 4
        if (secret is None or sound) and type(seed) is int and seed >= 0 and words in (1, 4):
            try:
                return cls(None if secret is None else int(str(secret), 16), seed, int(words))
            except ValueError:
                pass
        raise StorageError(
            'the stored seeds are malformed: expected {"secret": ..., "seed": ..., "words": 1 or 4}'
        )
