"""The rival of a search: a coding agent that has the same description and the same evaluations.

A folder holds ``TASK.md``, the search's own description with the names and ranges of the weights,
and ``evaluate.py``, which needs nothing but Python. ``python evaluate.py weights.json`` evaluates a
policy on the ten initial states of the search and writes the steps of its episodes to
``steps-N.npz``; ``--final`` hands the policy over that is judged.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from llmopt.policies import PolicySearch
from llmopt.policies.source import policy_source

_CLIENT = """# python evaluate.py weights.json [--final]
import json, os, pathlib, sys, time

here = pathlib.Path(__file__).parent
text = json.dumps({"weights": json.load(open(sys.argv[1])), "final": "--final" in sys.argv})
place = here / "queue" / f"{time.time_ns()}.json"
(here / "queue" / "new").write_text(text)
os.replace(here / "queue" / "new", place)
answer = place.with_suffix(".out")
while not answer.exists():
    time.sleep(0.2)
print(answer.read_text())
"""
_TASK = """# Task

Find a policy with the highest mean return. You have at most {limit} evaluations, each on \
the same {starts} initial states; the final policy is judged on other initial states of the same \
distribution.

{description}

A policy is `policy(weights, observation)`:

```python
{source}
```

`weights` is a list of {count} numbers in this order, each within its range:

{ranges}

`python evaluate.py weights.json` (a JSON list) prints the {starts} returns and writes \
observations, actions and rewards of the episodes to `steps-N.npz`. \
`python evaluate.py weights.json --final` hands in your final policy and ends the task.
"""


def write_folder(search: PolicySearch, folder: Path, limit: int) -> None:
    """Write what the agent receives into an empty folder."""
    source, constants, _ = policy_source(search.policy)
    fixed = [f"{name} = np.array({np.asarray(v).tolist()!r})" for name, v in constants.items()]
    ranges = [f"- {name}: {low:g} to {high:g}" for name, (low, high) in search.bounds.items()]
    text = _TASK.format(
        limit=limit,
        starts=len(search.starts),
        description=search.description,
        source="\n".join([*source.split("\n")[:1], *fixed, *source.split("\n")[1:]]),
        count=len(ranges),
        ranges="\n".join(ranges),
    )
    (folder / "queue").mkdir(parents=True)
    (folder / "TASK.md").write_text(text, encoding="utf-8")
    (folder / "evaluate.py").write_text(_CLIENT, encoding="utf-8")


def serve(
    search: PolicySearch, folder: Path, limit: int
) -> tuple[list[Any], Mapping[str, Any], float]:
    """Answer the agent until it hands in a policy.

    Returns:
        The values measured, the policy, and the seconds since the folder was there.
    """
    write_folder(search, folder, limit)
    began, curve = time.monotonic(), list[Any]()
    while True:
        waiting = [p for p in (folder / "queue").glob("*.json") if not _answer(p).exists()]
        for place in sorted(waiting):
            asked = json.loads(place.read_text(encoding="utf-8"))
            params = dict(zip(search.bounds, asked["weights"], strict=False))
            wrong = len(asked["weights"]) != len(search.bounds) or not all(
                low <= params[name] <= high for name, (low, high) in search.bounds.items()
            )
            if wrong:
                said = f"not evaluated: expected {len(search.bounds)} numbers within their ranges"
            elif asked["final"]:
                _answer(place).write_text("received", encoding="utf-8")
                return curve, params, time.monotonic() - began
            elif len(curve) >= limit:
                said = f"not evaluated: all {limit} evaluations are used; hand in with --final"
            else:
                outcome, _ = search.measure(params)
                curve.append(outcome.mean)
                _save(folder / f"steps-{len(curve)}.npz", search._data or {})
                said = f"mean {outcome.mean}, returns {list(outcome.returns)} {outcome.failure}"
                said += f"; evaluation {len(curve)} of {limit}"
            _answer(place).write_text(said, encoding="utf-8")
        time.sleep(0.2)


def _answer(place: Path) -> Path:
    return place.with_suffix(".out")


def _save(path: Path, steps: Mapping[str, Any]) -> None:
    """Write the arrays of each episode as ``NAME_EPISODE``."""
    arrays: dict[str, Any] = {}
    for name, episodes in steps.items():
        for i, episode in enumerate(episodes if isinstance(episodes, list) else ()):
            if isinstance(episode, np.ndarray):
                arrays[f"{name}_{i}"] = episode
            elif name == "ended":
                arrays[f"{name}_{i}"] = np.array(episode)
    np.savez_compressed(path, **arrays)
