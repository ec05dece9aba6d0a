"""However a training process ends: its last step, open window and run span arrive over OTLP."""

import signal
import subprocess
import sys
import textwrap
import time

import pytest

# A training of many short steps that tells when it is under way; each test says how it ends.
PROGRAM = """
import logging, os, signal, sys, threading, time
import otel_training

logging.basicConfig(format="%(message)s")
telemetry = otel_training.start(
    otlp_endpoint=sys.argv[1], prometheus=False, run_id="r1", export_interval_s=1000.0, window_s=1000.0
)
emit = telemetry.hook.on_event

def train(steps, pause_s=0.0):
    emit("train_start", {"start_step": 0, "target_step": steps})
    for step in range(1, steps + 1):
        emit("train_step", {"step": step, "loss": 1.0})
        if step == 3:
            print("under way", flush=True)
        if pause_s:
            time.sleep(pause_s)
"""

FOREVER = 10**9


class Program:
    """A child process that trains."""

    def __init__(self, sink, ending, environment=None):
        code = textwrap.dedent(PROGRAM) + textwrap.dedent(ending)
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, sink.url],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def wait_under_way(self):
        line = self.process.stdout.readline()
        assert line == "under way\n", self.process.stderr.read()

    def end(self):
        """Return the exit status and what was said on standard error."""
        _, errors = self.process.communicate(timeout=40)
        return self.process.returncode, errors


@pytest.fixture
def run(otlp_sink):
    programs = []

    def run(ending):
        programs.append(Program(otlp_sink, ending))
        return programs[-1]

    yield run
    for program in programs:
        program.process.kill()
        program.process.communicate()


def check_arrived(sink, outcome, *, error=None, at_least=3):
    [run] = sink.spans("training.run")
    [window] = sink.spans("training.window")
    steps = sink.points("training.steps")[-1].value
    assert steps >= at_least
    assert run.attributes["training.run.outcome"] == outcome
    assert run.attributes["training.step.final"] == window.attributes["training.step.last"] == steps
    assert run.is_error == (error is not None)
    assert [event["exception.type"] for _, event in run.events] == ([error] if error else [])
    assert sink.points("training.run.active")[-1].value == 0
    return run


def test_sigterm(run, otlp_sink):
    program = run(f"train({FOREVER}, 0.001)")
    program.wait_under_way()
    program.process.send_signal(signal.SIGTERM)
    assert program.end() == (-signal.SIGTERM, "")
    check_arrived(otlp_sink, "interrupted")


@pytest.mark.timeout(240)
def test_sigterm_in_the_middle_of_an_event_thirty_times(run, otlp_sink):
    for number in range(30):
        otlp_sink.requests.clear()
        program = run(f"train({FOREVER})")
        program.wait_under_way()
        time.sleep(number * 0.0007)
        program.process.send_signal(signal.SIGTERM)
        assert program.end() == (-signal.SIGTERM, "")
        check_arrived(otlp_sink, "interrupted")


def test_sigterm_many_times_in_a_row(run, otlp_sink):
    program = run(f"train({FOREVER}, 0.001)")
    program.wait_under_way()
    for _ in range(20):
        program.process.send_signal(signal.SIGTERM)
    assert program.end() == (-signal.SIGTERM, "")
    check_arrived(otlp_sink, "interrupted")


def test_sigterm_while_the_telemetry_is_closed(run, otlp_sink):
    program = run(
        """
        train(5)
        threading.Timer(0.0, lambda: os.kill(os.getpid(), signal.SIGTERM)).start()
        telemetry.close()
        time.sleep(30)
        """
    )
    assert program.end()[0] == -signal.SIGTERM
    check_arrived(otlp_sink, "interrupted")


def test_sigterm_with_a_handler_of_the_user_s_that_goes_on_to_the_end(run, otlp_sink):
    program = run(
        """
        telemetry.close()
        stop = []
        mine = lambda *_: stop.append(1)
        signal.signal(signal.SIGTERM, mine)
        telemetry = otel_training.start(
            otlp_endpoint=sys.argv[1], prometheus=False, run_id="r2", export_interval_s=1000.0
        )
        emit = telemetry.hook.on_event
        emit("train_start", {"start_step": 0})
        for step in range(1, 4):
            emit("train_step", {"step": step})
        print("under way", flush=True)
        while not stop:
            step += 1
            emit("train_step", {"step": step})
            time.sleep(0.001)
        assert signal.getsignal(signal.SIGTERM) is mine
        emit("train_end", {"steps": step, "outcome": "completed"})
        telemetry.close()
        sys.exit(7)
        """
    )
    program.wait_under_way()
    program.process.send_signal(signal.SIGTERM)
    assert program.end() == (7, "")
    check_arrived(otlp_sink, "completed")


def test_sigint_is_130_and_no_failure(run, otlp_sink):
    program = run(f"train({FOREVER}, 0.001)")
    program.wait_under_way()
    program.process.send_signal(signal.SIGINT)
    status, errors = program.end()
    assert status == -signal.SIGINT  # a shell says 130
    assert errors.endswith("KeyboardInterrupt\n")
    check_arrived(otlp_sink, "interrupted")


def test_sigint_in_the_middle_of_an_event_leaves_sigterm_working(run, otlp_sink):
    program = run(
        f"""
        while True:
            try:
                train({FOREVER})
            except KeyboardInterrupt:
                print("interrupted", flush=True)
        """
    )
    for _ in range(20):
        program.wait_under_way()
        program.process.send_signal(signal.SIGINT)
        assert program.process.stdout.readline() == "interrupted\n"
    program.wait_under_way()
    program.process.send_signal(signal.SIGTERM)
    assert program.end() == (-signal.SIGTERM, "")
    assert len(otlp_sink.spans("training.run")) == 21


def test_sys_exit(run, otlp_sink):
    program = run("train(5); sys.exit(3)")
    assert program.end() == (3, "")
    check_arrived(otlp_sink, "interrupted", at_least=5)


def test_an_exception_that_nobody_catches(run, otlp_sink):
    program = run("train(5); raise MemoryError('too big')")
    status, errors = program.end()
    assert status == 1
    assert errors.endswith("MemoryError: too big\n")
    check_arrived(otlp_sink, "failed", error="MemoryError", at_least=5)


def test_the_program_s_end_without_close_and_without_the_hook(run, otlp_sink):
    program = run("train(5); del telemetry, emit; import gc; gc.collect()")
    assert program.end() == (0, "")
    check_arrived(otlp_sink, "interrupted", at_least=5)


def test_a_process_of_multiprocessing_made_by_fork(run, otlp_sink):
    program = run(
        """
        import multiprocessing

        def work():
            global emit
            own = otel_training.start(
                otlp_endpoint=sys.argv[1], prometheus=False, run_id="child", export_interval_s=1000.0
            )
            emit = own.hook.on_event
            train(5)

        emit("train_start", {"start_step": 0})
        child = multiprocessing.get_context("fork").Process(target=work)
        child.start()
        child.join()
        telemetry.close()
        sys.exit(child.exitcode)
        """
    )
    status, _ = program.end()
    assert status == 0
    runs = {run.resource["training.run.id"]: run for run in otlp_sink.spans("training.run")}
    assert set(runs) == {"r1", "child"}
    assert runs["child"].attributes["training.step.final"] == 5


def test_after_kill_9_the_start_and_the_last_closed_window_are_there(otlp_sink):
    code = PROGRAM.replace("window_s=1000.0", "window_s=1.0") + f"train({FOREVER}, 0.001)"
    process = subprocess.Popen([sys.executable, "-c", code, otlp_sink.url], stdout=subprocess.DEVNULL)
    try:
        otlp_sink.wait_for(lambda sink: sink.spans("training.window"), within_s=40)
    finally:
        process.kill()
        process.wait()
    assert len(otlp_sink.spans("training.run.start")) == 1
    assert otlp_sink.spans("training.run") == []
    start, window = otlp_sink.spans("training.run.start")[0], otlp_sink.spans("training.window")[0]
    assert window.links[0] == (start.trace_id, start.parent_id)
