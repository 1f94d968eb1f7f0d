"""One round of every attack on the sandbox, and what a stored search makes of a forgery."""

import pytest
import sandbox_attacks
from stubs import needs_confinement

from llmopt import ScriptedClient
from llmopt.code.checks import Function, Output
from llmopt.code.code_optimizer import CodeOptimizer
from llmopt.sandbox import encoding

pytestmark = needs_confinement
SWEEPS = ("escapes by Python and C calls",)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.sweep if name in SWEEPS else [])
        for name in sandbox_attacks.ATTACKS
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_attacks(name):
    tried, through = sandbox_attacks.run(name, 1, seed=0)
    assert tried > 0
    assert through == []


def test_a_forged_failure_does_not_end_a_stored_search(tmp_path):
    """The paid reply is in the file: what it does would be done again at every resumption."""
    report = encoding.encode({"type": "ConfinementError", "message": "no Landlock", "trace": []})
    forgery = encoding.HEADER.pack(len(report), 3, 3) + report
    replies = [
        "```python\nos = __builtins__.__import__('os')\n"
        f"os.write(1, {forgery!r})\nwhile True: pass\ndef f(x):\n    return 1.0\n```",
        "```python\ndef f(x):\n    return 2.0\n```",
    ]
    function = Function("f(x)", output=Output(), samples=((1.0,),))
    for _ in range(2):
        client = ScriptedClient(replies)
        with CodeOptimizer(
            function, client=client, seed=0, storage=tmp_path / "run.jsonl"
        ) as optimizer:
            candidate = optimizer.ask()
            assert candidate(1.0) == 2.0
            assert optimizer.usage.rejected == {"protocol": 1}
        replies = []
