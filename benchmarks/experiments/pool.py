"""Running the cells of an experiment in processes, each kept as soon as it is done."""

from __future__ import annotations

import math
import multiprocessing
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import astuple, fields
from typing import Any

from llmopt.search.eventlog import EventLog


def run_cells(
    cells: Sequence[Any], run: Callable[[Any], dict[str, Any]], log: EventLog, jobs: int
) -> None:
    """Run the cells that a log does not hold yet, and append a line for each; close the log.

    Args:
        cells: What `run` is called with: instances of one dataclass that can be pickled, whose
            fields stand in the lines under the same names.
        run: Function of a module, which returns a cell's line.
        log: Takes the lines, in the order in which cells finish.
        jobs: Cells run at once.
    """
    names = [field.name for field in fields(cells[0])] if cells else []
    done = {tuple(line[name] for name in names) for line in log.events}
    todo = [cell for cell in cells if astuple(cell) not in done]
    print(f"{len(cells) - len(todo)} of {len(cells)} cells are there, {len(todo)} to run")
    start = time.perf_counter()
    # A fresh process each: a fork would copy a loaded model's threads.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        futures = [pool.submit(run, cell) for cell in todo]
        try:
            for number, future in enumerate(as_completed(futures), start=1):
                log.append(future.result())
                passed = time.perf_counter() - start
                left = passed / number * (len(todo) - number)
                print(f"{number}/{len(todo)}, {math.ceil(left / 60)} min left", flush=True)
        except BaseException:
            # Without this the pool would finish every cell before the error shows.
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        finally:
            log.close()
