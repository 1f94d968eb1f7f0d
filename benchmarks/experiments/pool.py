"""Running the cells of an experiment in processes, each kept as soon as it is done."""

from __future__ import annotations

import math
import multiprocessing
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any

from llmopt.storage import EventLog


def run_cells(
    cells: Sequence[Any], run: Callable[[Any], dict[str, Any]], log: EventLog, jobs: int
) -> None:
    """Run cells and append a line for each to a log, which is closed at the end.

    Args:
        cells: What `run` is called with; it can be pickled.
        run: Function of a module, which returns a cell's line.
        log: Takes the lines, in the order in which cells finish.
        jobs: Cells run at once.
    """
    start = time.perf_counter()
    # A fresh process each: a fork would copy a loaded model's threads.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        futures = [pool.submit(run, cell) for cell in cells]
        try:
            for number, future in enumerate(as_completed(futures), start=1):
                log.append(future.result())
                passed = time.perf_counter() - start
                left = passed / number * (len(cells) - number)
                print(f"{number}/{len(cells)}, {math.ceil(left / 60)} min left", flush=True)
        except BaseException:
            # Without this the pool would finish every cell before the error shows.
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        finally:
            log.close()
