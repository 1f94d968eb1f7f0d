"""The rules of docs/architecture.md that a machine can hold."""

import ast
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = {"llmopt": "llmopt", "llmopt.adapters": "adapters", "llmopt.benchmarks": "benchmarks"}
# The house from bottom to top: a module imports what stands above its own line, never below,
# inside functions, too. Names on one line belong together.
ORDER = """
_version
errors util
client
packing
data
space
two_way
history origin
repeats
evaluation_loop
evaluations
events
state
changes
journal
caps
options
model_calls
prompt
propose
callbacks
points
point_task
turns
partners
from_optuna
to_optuna
report_page
views
record
resume_check
other_search
imports
sandbox
lab
results
finals
asks
optimizer
progress
loop
policies
trackers
code
reports

adapters
service
commands
cli __main__
benchmarks
"""
CORE = ORDER.split().index("turns")  # what stands below knows nothing of the laboratory
# Names that README, docs and code of users import, from where they do.
PUBLIC = {
    "llmopt": "LLMOptimizer Space Float Int Categorical ScriptedClient RecordClient ReplayClient "
    "get_client get_prompt parse_parameters History Trial Usage Proposal",
    "llmopt.space": "Space Float Int Categorical Value",
    "llmopt.prompt": "get_prompt Prompt TemplatePrompt ColumnsPrompt "
    "Situation Question Reading ToolCall Complaint Entry "
    "estimate_tokens PROMPTS PROMPT_VERSION",
    "llmopt.history": "History Trial Usage Proposal",
    "llmopt.optimizer": "LLMOptimizer",
    "llmopt.errors": "LLMOptError BudgetExceededError ParseError StorageError FallbackWarning",
    "llmopt.client": "Client Request Reply Completion Message get_client",
    "llmopt.client.base": "Client Request Reply Completion Message",
    "llmopt.client.prices": "Price most_cost",
    "llmopt.code": "CodeOptimizer Function Output Sandbox WorkerLimits GenCode "
    "evaluate_policy improve policy_function improve_reward reward_function train_linear "
    "LanguageFeedback",
    "llmopt.policies": "LinearPolicy",
    "llmopt.adapters.optuna": "LLMSampler",
    "llmopt.adapters.nevergrad": "LLM ParametrizedLLM",
    "llmopt.benchmarks.tasks": "TASKS Task get_task",
    "llmopt.benchmarks.methods": "METHODS",
    "llmopt.benchmarks.run": "RunConfig run",
    "llmopt.benchmarks.bench": "run_cell",
}


def modules():
    """Return every module with its file."""
    found = {}
    for package, folder in FOLDERS.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            relative = path.relative_to(ROOT / folder)
            if "optunahub" in relative.parts:
                continue
            parts = [package, *relative.with_suffix("").parts]
            found[".".join(p for p in parts if p != "__init__")] = path
    return found


MODULES = modules()


def imports(path, *, top_only):
    """Return the modules of ours that a file imports; `top_only` leaves out those in functions."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = list(ast.walk(tree))
    if top_only:
        nodes, queue = [], list(tree.body)
        while queue:
            node = queue.pop()
            nodes.append(node)
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
                queue += node.orelse
            elif isinstance(node, ast.If | ast.Try | ast.With):
                queue += ast.iter_child_nodes(node)
    names = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                names.add(whole if whole in MODULES else node.module)
    return {n for n in names if n.split(".")[0] == "llmopt"}


def level(module):
    """Return the line of `ORDER` on which a module stands."""
    name = [*module.split("."), ""][1]
    lines = [line.split() for line in ORDER.strip("\n").split("\n")]
    return next(i for i, names in enumerate(lines) if name in names or (not name and not names))


@pytest.mark.parametrize("module", sorted(MODULES))
def test_imports_run_downward_only(module):
    for imported in imports(MODULES[module], top_only=False):
        assert level(imported) <= level(module), f"{module} imports {imported}"


def test_the_core_knows_nothing_of_laboratory_files_and_shell():
    above = {"sandbox", "lab", "optimizer", "policies", "code", "cli", "service", "commands"}
    core = set(ORDER.split()[: CORE + 1])
    for module, path in MODULES.items():
        if module.split(".")[1:2] and module.split(".")[1] in core:
            for imported in imports(path, top_only=False):
                assert imported.split(".")[1:2] == [] or imported.split(".")[1] not in above


def test_no_circle_of_imports():
    graph = {n: imports(p, top_only=True) & set(MODULES) - {n} for n, p in MODULES.items()}
    # A package's face imports its modules; a module that imports the face would close a circle.
    done, path = set(), []

    def visit(name):
        assert name not in path, " -> ".join([*path[path.index(name) :], name])
        if name in done:
            return
        path.append(name)
        for imported in sorted(graph[name]):
            visit(imported)
        path.pop()
        done.add(name)

    for name in sorted(graph):
        visit(name)


# Private attributes of other packages' objects, for which these have no public name.
FOREIGN = {
    "argparse": "_actions _get_values _option_string_actions _AppendAction",
    "functools, os, sys, threading": "_lru_cache_wrapper _exit _getframe _at_fork_reinit",
    "named tuples": "_replace",
    "anthropic, openai, google": "_api_client _client _custom_headers _content _session "
    "_refresh_status_codes",
    "gymnasium": "_get_obs",
    "nevergrad": "_constraint_checkers _content _layers _repetitions _value",
    "numba": "_reduce_states",
    "optuna": "_base_sampler _contains _storage _study_id _trial_id",
}


def private_uses(tree):
    """Return what a module reads of other objects by a private name that it does not define."""
    own, used = set(), []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            own.add(node.name)
        elif isinstance(node, ast.ClassDef):
            own |= {s.target.id for s in node.body if isinstance(s, ast.AnnAssign)}
            own |= {t.id for s in node.body if isinstance(s, ast.Assign) for t in s.targets}
        elif isinstance(node, ast.Attribute) and re.match("_[^_]", node.attr):
            if ast.unparse(node.value) in ("self", "cls", "super()"):
                own.add(node.attr)
            else:
                used.append(node)
    return {ast.unparse(node): node.attr for node in used if node.attr not in own}


def test_no_module_reads_private_attributes_of_another_ones_objects():
    foreign = set(" ".join(FOREIGN.values()).split())
    for name, path in MODULES.items():
        if not name.startswith("llmopt.benchmarks"):
            uses = private_uses(ast.parse(path.read_text(encoding="utf-8")))
            assert {text for text, attr in uses.items() if attr not in foreign} == set(), name


@pytest.mark.parametrize("module", sorted(PUBLIC))
def test_public_names_stay_where_they_were(module):
    library = {"llmopt.adapters.optuna": "optuna", "llmopt.adapters.nevergrad": "nevergrad"}
    if module in library:
        pytest.importorskip(library[module])
    loaded = importlib.import_module(module)
    for name in PUBLIC[module].split():
        assert hasattr(loaded, name), f"{module}.{name}"
