"""Rows on several processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from itertools import islice
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection

from vramplan import disk_cache
from vramplan.planner.table.request import TableRequest
from vramplan.planner.table.row import Place, Row, compute_row

SAFE_PATH = "PYTHONSAFEPATH"
ROWS_AHEAD = 2
"""Rows that wait for each process while it works on one."""


def compute_rows(request: TableRequest, places: Sequence[Place], jobs: int) -> Iterator[tuple[Place, Row]]:
    """Each row as it is done, begun in the order of `places`, on `jobs` processes; on this one if `jobs` is 1."""
    if jobs <= 1:
        yield from ((place, compute_row(request, place)) for place in places)
        return
    waiting = iter(places)
    places_of: dict[Future[Row], Place] = {}
    context = multiprocessing.get_context("spawn")  # a fork would take over the threads of a progress bar
    with ExitStack() as stack:
        until_closed, end = context.Pipe(duplex=False)
        stack.callback(until_closed.close)
        stack.callback(end.close)
        with _outside_the_working_directory(), _interrupts_later():
            initial = request, disk_cache.is_enabled(), until_closed
            pool = ProcessPoolExecutor(jobs, context, _begin_process, initial)
            stack.callback(pool.shutdown, cancel_futures=True)
            for place in islice(waiting, jobs * (1 + ROWS_AHEAD)):
                places_of[pool.submit(_compute_here, place)] = place
        try:
            while places_of:
                done, _ = wait(places_of, return_when=FIRST_COMPLETED)
                for future in done:
                    yield places_of.pop(future), future.result()
                    following = next(waiting, None)
                    if following is not None:
                        places_of[pool.submit(_compute_here, following)] = following
        except BaseException:  # Ctrl-C, or no more rows are asked for: the processes end without finishing theirs
            end.close()
            raise


@contextmanager
def _outside_the_working_directory() -> Iterator[None]:
    """Processes that start inside import nothing from the working directory, where ``-c`` looks for modules first."""
    if sys.version_info < (3, 11):  # without a variable for it: they start in an empty folder
        folder = os.getcwd()
        with tempfile.TemporaryDirectory() as empty:
            os.chdir(empty)
            try:
                yield
            finally:
                os.chdir(folder)
        return
    before = os.environ.get(SAFE_PATH)
    os.environ[SAFE_PATH] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[SAFE_PATH]
        else:
            os.environ[SAFE_PATH] = before


@contextmanager
def _interrupts_later() -> Iterator[None]:
    """Processes that start inside never see Ctrl-C, which is for this process alone: it comes at the end."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    resource_tracker.ensure_running()  # which clears the mask
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_sheet: list[TableRequest] = []
"""The table that this process works on, sent once."""


def _begin_process(request: TableRequest, keeps_results: bool, until_closed: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if not keeps_results:
        disk_cache.disable()
    _sheet[:] = [request]
    threading.Thread(target=_end_with, args=(until_closed,), daemon=True).start()


def _end_with(until_closed: Connection) -> None:
    """Exit when the parent closes the other end of the pipe, as it does however it ends."""
    with suppress(EOFError, OSError):
        until_closed.recv()
    os._exit(1)


def _compute_here(place: Place) -> Row:
    return compute_row(_sheet[0], place)
