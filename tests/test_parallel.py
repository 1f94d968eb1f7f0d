"""Searches whose evaluations run in parallel, and the loop that they share."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from types import SimpleNamespace

import pytest

from llmopt import Float, LLMOptError, ScriptedClient, maximize, minimize, optimize
from llmopt.evaluation_loop import Threads, drive, workers_of
from llmopt.progress import in_notebook

SPACE = {"x": Float(-5, 5)}


class Model(ScriptedClient):
    """Proposes another point with every answer."""

    def __init__(self):
        super().__init__(self.reply)

    def reply(self, request):
        return json.dumps({"x": round(0.001 * self.count, 6)})

    @property
    def count(self):
        return len(self.requests)


def square(point):
    return point["x"] ** 2


def slow_square(point):
    time.sleep(0.2)
    return point["x"] ** 2


def die_below(point):
    if point["x"] < -2:
        os._exit(3)
    return point["x"]


def die(point):
    os._exit(3)


class Crowd:
    """An objective that returns once `size` evaluations run at the same time."""

    def __init__(self, size):
        self.barrier = threading.Barrier(size, timeout=30)

    def __call__(self, point):
        self.barrier.wait()
        return point["x"]


def search(f, n=12, model=None, call=minimize, **options):
    options = {"warmup": 4, "prompt": "props", "seed": 0, **options}
    return call(f, SPACE, n, model or Model(), **options)


def test_evaluations_run_at_once():
    model = Model()
    result = search(Crowd(4), 20, model, n_jobs=4)
    assert len(result.trials) == 20
    assert result.stopped == ""
    assert model.count == 16
    assert result.usage.proposals == {"warmup": 4, "llm": 16}
    assert len({t.values for t in result.trials}) == 20


@pytest.mark.parametrize("kind", [ThreadPoolExecutor, ProcessPoolExecutor])
def test_an_executor_of_the_user_is_used_and_left_open(kind, tmp_path):
    with kind(2) as executor:
        for n in (8, 10):  # worker processes that are forked meanwhile do not keep the file
            result = search(square, n, executor=executor, storage=tmp_path / "s.jsonl")
            assert len(result.trials) == n
        assert executor.submit(abs, -1).result() == 1


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"n_jobs": 0}, ValueError, "n_jobs=0: expected a whole number .* -1"),
        ({"n_jobs": 2.5}, ValueError, "n_jobs=2.5"),
        ({"n_jobs": "8"}, ValueError, "n_jobs='8'"),
        ({"executor": 8}, TypeError, "executor=8.*n_jobs=8"),
        ({"executor": ThreadPoolExecutor}, TypeError, "such as ProcessPoolExecutor"),
        ({"timeout": 0}, ValueError, "timeout=0: expected seconds above 0"),
        ({"timeout": "60"}, ValueError, "timeout='60'"),
    ],
)
def test_what_is_refused_before_anything_is_evaluated(options, error, message):
    with pytest.raises(error, match=message):
        search(die, **options)


def test_a_function_that_no_process_can_be_sent_is_named():
    with ProcessPoolExecutor(1) as executor:
        with pytest.raises(TypeError, match="top of a module, or take threads"):
            search(lambda point: 1.0, executor=executor)


def test_a_worker_that_dies_ends_the_search_and_its_point_is_kept(tmp_path):
    path = tmp_path / "s.jsonl"
    with ProcessPoolExecutor(1) as executor, pytest.raises(BrokenProcessPool) as raised:
        search(die, executor=executor, storage=path)
    assert "catch=BrokenProcessPool records such points as failed" in str(raised.value.__notes__)
    assert len(search(square, storage=path, n_jobs=2).trials) == 12


def test_a_worker_that_dies_ends_the_search_and_loses_no_result(tmp_path):
    path = tmp_path / "s.jsonl"
    with ProcessPoolExecutor(2) as executor:
        result = search(die_below, executor=executor, storage=path, catch=BrokenProcessPool)
    assert "the executor broke" in result.stopped
    assert result.left["evaluations"] == 12 - len(result.trials)
    failed = [t for t in result.trials if t.state == "failed"]
    assert any(t.params["x"] < -2 for t in failed)
    assert all(t.params["x"] >= -2 for t in result.trials if t.state == "complete")
    assert not result.optimizer.pending
    assert len(search(square, storage=path).trials) == 12


def test_a_pool_that_breaks_just_before_a_submit_keeps_the_point_that_broke_it():
    class Breaks(Executor):
        first = None

        def submit(self, fn, *args):
            if self.first is not None:
                self.first.set_exception(BrokenProcessPool("it ended"))
                raise BrokenProcessPool("it ended")
            self.first = Future()
            return self.first

    result = search(square, executor=Breaks(), n_jobs=2, catch=BrokenProcessPool)
    assert result.stopped == "the executor broke: it ended"
    assert [t.state for t in result.trials] == ["failed"]
    with pytest.raises(BrokenProcessPool) as raised:
        search(square, executor=Breaks(), n_jobs=2)
    assert "catch=BrokenProcessPool records" in str(raised.value.__notes__)


@pytest.mark.parametrize("error", [SystemExit, GeneratorExit])
def test_an_evaluation_that_exits_ends_the_search_once_what_runs_is_told(tmp_path, error):
    started = threading.Barrier(3, timeout=30)

    def f(point):
        if started.wait() == 0:
            raise error(3)
        time.sleep(0.1)
        return 1.0

    path = tmp_path / "s.jsonl"
    with pytest.raises(error):
        search(f, n_jobs=3, storage=path)
    evaluated = []
    search(lambda point: evaluated.append(point) or 1.0, n_jobs=3, storage=path)
    assert len(evaluated) == 10  # two were recorded; the one that failed is evaluated again


@pytest.mark.parametrize("n_jobs", [1, 3])
def test_after_the_timeout_no_evaluation_begins_and_what_runs_is_told(n_jobs):
    result = search(slow_square, 1000, n_jobs=n_jobs, timeout=0.5)
    assert 0 < len(result.trials) < 100
    assert result.stopped == "timeout=0.5 seconds are over"
    assert result.left["evaluations"] == 1000 - len(result.trials)
    assert result.optimizer.pending == []


@pytest.mark.parametrize("n_jobs", [1, 3])
def test_an_answer_that_comes_after_the_timeout_waits_for_a_resume(n_jobs, tmp_path):
    class Slow(Model):
        def reply(self, request):
            time.sleep(0.5 * (self.count == 1))
            return super().reply(request)

    path, model, seen = tmp_path / "s.jsonl", Slow(), []

    def f(point):
        seen.append(point)
        return 1.0

    options = {"n_jobs": n_jobs, "warmup": 0, "storage": path}
    result = search(f, 8, model, timeout=0.3, **options)
    assert (result.stopped, seen, model.count) == ("timeout=0.3 seconds are over", [], 1)
    assert search(f, 8, model, **options).usage.requests == 8
    assert sorted(point["x"] for point in seen) == [0.001 * k for k in range(1, 9)]


@pytest.mark.parametrize("n_jobs", [2, 5])
def test_a_parallel_search_that_was_killed_evaluates_what_it_had_begun(n_jobs, tmp_path):
    path = tmp_path / "s.jsonl"
    script = f"""
        import os, sys, time
        sys.path.insert(0, {str(os.path.dirname(__file__))!r})
        from test_parallel import Model, search
        seen = []
        def f(point):
            seen.append(point)
            if len(seen) > 8:
                time.sleep(0.2)
                os._exit(9)
            return point["x"]
        search(f, 30, n_jobs={n_jobs}, storage={str(path)!r})
    """
    assert subprocess.run([sys.executable, "-c", textwrap.dedent(script)]).returncode == 9
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    told = sum(line["event"] == "told" for line in lines)
    seen = []
    options = {"n_jobs": n_jobs, "storage": path, "max_fallbacks": None}  # the model repeats points
    result = search(lambda p: seen.append(p["x"]) or p["x"], 30, **options)
    assert len(seen) == 30 - told
    assert len(result.trials) == len({t.values for t in result.trials}) == 30
    assert result.optimizer.pending == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize(
    "begin",
    [
        "with ProcessPoolExecutor(1, multiprocessing.get_context('fork')) as pool:\n"
        "    search(die, 30, executor=pool, storage=path)",
        "search(fork, 30, storage=path)",
    ],
)
def test_a_search_that_was_killed_resumes_while_its_worker_processes_live(begin, tmp_path):
    path = tmp_path / "s.jsonl"
    script = f"""
import multiprocessing, os, signal, sys
from concurrent.futures import ProcessPoolExecutor
sys.path.insert(0, {str(os.path.dirname(__file__))!r})
from test_parallel import search
path = {str(path)!r}
def die(point):
    print(os.getpid(), flush=True)
    os.kill(os.getppid(), signal.SIGKILL)
    signal.pause()
def fork(point):
    multiprocessing.get_context("fork").Process(target=die, args=(point,)).start()
    signal.pause()
{begin}
"""
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    worker = int(process.stdout.readline())
    try:
        assert process.wait() == -signal.SIGKILL
        assert len(search(lambda p: p["x"], 5, storage=path).trials) == 5
        os.kill(worker, 0)  # it lives
    finally:
        os.kill(worker, signal.SIGKILL)
        process.stdout.close()


def interrupted(body, signals=1):
    """Run a script that sends itself Ctrl-C, and return its process."""
    script = f"""
        import os, signal, sys, threading, time
        sys.path.insert(0, {str(os.path.dirname(__file__))!r})
        from test_parallel import Model, search
        started = []
        def f(point):
            started.append(point)
            if len(started) == 6:
                for _ in range({signals}):
                    os.kill(os.getpid(), signal.SIGINT)
                    time.sleep(0.2)
            time.sleep({0.1 if signals == 1 else 60} if len(started) >= 6 else 0.01)
            return point["x"]
    """
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script) + textwrap.dedent(body)],
        capture_output=True,
        text=True,
        timeout=50,
    )


@pytest.mark.parametrize("n_jobs", [1, 3])
def test_the_first_interrupt_returns_what_is_there(n_jobs, tmp_path):
    done = interrupted(
        f"""
        result = search(f, 30, n_jobs={n_jobs}, storage={str(tmp_path / "s.jsonl")!r})
        print(result.stopped, len(started) == len(result.trials), result.optimizer.pending)
        print(len(result.trials) < 12, signal.getsignal(signal.SIGINT).__name__)
        """
    )
    assert done.stdout.split("\n")[:2] == [
        "interrupted by Ctrl-C True []",
        "True default_int_handler",
    ], done.stderr
    assert "press Ctrl-C again to stop at once" in done.stderr
    assert "run the script again" in done.stderr


@pytest.mark.parametrize("n_jobs", [1, 3])
def test_the_second_interrupt_raises_and_the_process_ends(n_jobs, tmp_path):
    path = tmp_path / "s.jsonl"
    done = interrupted(f"search(f, 30, n_jobs={n_jobs}, storage={str(path)!r})", signals=2)
    assert done.returncode in (1, 130, -signal.SIGINT)
    assert "KeyboardInterrupt" in done.stderr
    result = search(square, 30, storage=path, n_jobs=n_jobs)
    assert len({t.values for t in result.trials}) == 30


def test_an_interrupt_while_the_model_is_asked_returns_at_once():
    done = interrupted(
        """
        class Slow(Model):
            def reply(self, request):
                if self.count > 1:
                    os.kill(os.getpid(), signal.SIGINT)
                    time.sleep(60)
                return super().reply(request)
        result = search(lambda p: p["x"], 30, Slow())
        print(result.stopped, len(result.trials))
        """
    )
    assert done.stdout == "interrupted by Ctrl-C 5\n", done.stderr


def test_the_finalists_wait_for_the_points_that_run():
    calls = []

    def f(point):
        time.sleep(0.01)
        calls.append(point["x"])
        return point["x"] ** 2 + 0.1 * (len(calls) % 2)

    result = search(f, 24, n_jobs=4, noisy=True)
    assert result.finals == 4
    assert [t.kind for t in result.trials][-4:] == ["finalist"] * 4
    assert [t.kind for t in result.trials][:20] == ["search"] * 20


# -- several objectives -----------------------------------------------------------------------


@pytest.mark.parametrize("n_jobs", [1, 3])
def test_several_objectives_have_a_pareto_front(n_jobs):
    def f(point):
        numbers = point["x"] ** 2, (point["x"] - 1) ** 2
        return (numbers, "it rattled") if point["x"] > 0 else numbers

    result = search(f, 12, call=optimize, directions=["minimize", "minimize"], n_jobs=n_jobs)
    front = result.pareto
    assert 0 < len(front) <= 12
    assert all(isinstance(t.reward, tuple) for t in front)
    assert f"{len(front)} on the Pareto front" in repr(result)
    assert any(t.feedback == "it rattled" for t in result.trials)
    with pytest.raises(LLMOptError, match=r"2 objectives .* \.pareto"):
        _ = result.best
    with pytest.raises(LLMOptError, match=r"\.pareto"):
        result.optimizer.recommend()


def test_one_objective_has_a_front_too_and_history_can_be_gone_through():
    result = search(square, 6, call=maximize)
    assert result.best in result.pareto
    assert list(result.optimizer.history) == result.trials


# -- the loop ---------------------------------------------------------------------------------


def test_drive_asks_for_the_free_workers_and_waits_where_there_is_nothing():
    asked, told = [], []
    jobs = [1, 2, 3, 4, 5]

    def ask(free, running):
        asked.append((free, running))
        if jobs and (jobs[0] != 4 or running == 0):  # 4 waits until nothing runs
            return [jobs.pop(0) for _ in range(min(free, len(jobs), 3 if jobs[0] < 4 else 2))]
        return []

    def tell(job, result, error):
        told.append((job, result))

    ended = drive(ask, lambda job: (str, job), tell, executor=Threads(), workers=3)
    assert ended == ""
    assert sorted(told) == [(n, str(n)) for n in range(1, 6)]
    assert asked[0] == (3, 0)
    assert len(asked) < 10
    assert drive(lambda free, running: [], lambda job: (str, job), tell) == ""


# -- progress ---------------------------------------------------------------------------------


def test_a_log_gets_lines_with_who_proposed_the_best_and_the_time_left(capsys, monkeypatch):
    monkeypatch.setattr("llmopt.progress.LINE_SECONDS", 0.0)
    search(slow_square, 6, progress=True, warmup=5)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 7
    assert lines[0].startswith("llmopt: 1/6 trials, warmup ")
    assert "best " in lines[0]
    assert lines[0].endswith(" left")
    assert lines[5].startswith("llmopt: 6/6 trials, llm ")
    assert lines[5].endswith("cost not known")
    search(square, 6)
    search(square, 6, progress=False)
    assert capsys.readouterr().err == ""


def test_a_terminal_gets_a_bar_and_a_notebook_is_known(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    search(square, 6, call=optimize, directions=["minimize"], n_jobs=2)
    assert "6/6" in capsys.readouterr().err
    assert not in_notebook()
    shell = SimpleNamespace(config={"IPKernelApp": {}})
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert in_notebook()


def test_an_executor_of_dask_is_used():
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=2, processes=False, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        assert workers_of(None, client.get_executor())[0] == 2
        assert len(search(square, 8, executor=client.get_executor(pure=False)).trials) == 8
        with pytest.raises(TypeError, match=r"get_executor\(\)"):
            search(square, executor=client)


def test_a_search_in_another_thread_leaves_ctrl_c_alone():
    found = []
    thread = threading.Thread(target=lambda: found.append(search(square, 8, n_jobs=2)))
    thread.start()
    thread.join(30)
    assert len(found[0].trials) == 8


def test_a_terminal_without_a_width_gets_lines(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(sys.stderr, "fileno", lambda: 2)
    monkeypatch.setattr("os.get_terminal_size", lambda fd=1: os.terminal_size((0, 0)))
    search(square, 6)
    assert "llmopt: 6/6 trials" in capsys.readouterr().err
    search(square, 6, progress=False)
    assert capsys.readouterr().err == ""


class OneThread(Executor):
    """Runs everything at `submit`, and does not say how many workers it has."""

    def submit(self, fn, /, *args, **kwargs):
        future = Future()
        future.set_result(fn(*args, **kwargs))
        return future


def test_any_executor_will_do_that_has_submit():
    assert len(search(square, 6, executor=OneThread(), n_jobs=3).trials) == 6
    with pytest.raises(ValueError, match="add n_jobs="):
        search(square, executor=OneThread())
