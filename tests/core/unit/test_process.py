"""The environment, the limits and the signals of a process. Each case is a process of its own, without TensorFlow."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from psrun import process
from psrun.errors import ConfigError


def python(code: str, **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code], env={**os.environ, **variables}, stdout=subprocess.PIPE, text=True
    )


def test_grpc_uses_no_proxy_and_other_libraries_still_do():
    code = (
        "import os; from psrun import process; process.prepare();"
        "print([os.environ[name] for name in ('grpc_proxy', 'http_proxy', 'https_proxy')])"
    )
    proxy = "http://127.0.0.1:9"
    done = python(code, grpc_proxy=proxy, http_proxy=proxy, https_proxy=proxy)
    assert done.communicate(timeout=60)[0].strip() == str(["", proxy, proxy])


def test_variables_with_which_grpc_or_tensorflow_do_not_work_are_removed():
    unwanted = {"GRPC_POLL_STRATEGY": "none", "TF_GRPC_REUSE_PORT": "1", "TF_PSS_ENABLE_COORDINATION_SERVICE": "1"}
    code = f"import os; from psrun import process; process.prepare(); print(os.environ.keys() & {set(unwanted)})"
    assert python(code, **unwanted).communicate(timeout=60)[0] == "set()\n"


@pytest.mark.parametrize(
    ("soft", "hard", "expected"),
    [
        (64, 64, "ConfigError"),
        (64, 1024, "(512, 1024)"),
        (1024, 1024, "(1024, 1024)"),
    ],
)
def test_a_limit_of_open_files_is_raised_or_named(soft, hard, expected):
    code = f"""
import resource
from psrun import process
from psrun.errors import ConfigError
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
try:
    process.allow_open_files()
    print(resource.getrlimit(resource.RLIMIT_NOFILE))
except ConfigError as error:
    print(type(error).__name__)
"""
    assert python(code).communicate(timeout=60)[0].startswith(expected)


@pytest.mark.parametrize(("output", "lines"), [("/dev/full", 1), (None, 0)], ids=["full disk", "a reader that left"])
def test_a_process_goes_on_where_its_output_cannot_be_written(output, lines):
    code = """
import sys
from psrun import process
process.outlive_stdout(sys.stderr)
for _ in range(3):
    print("lost")
sys.exit(7)
"""
    written = subprocess.PIPE if output is None else open(output, "w")  # noqa: SIM115
    lasting = subprocess.Popen([sys.executable, "-c", code], stdout=written, stderr=subprocess.PIPE, text=True)
    (lasting.stdout or written).close()  # at once, as `head` does later
    assert len(lasting.stderr.read().splitlines()) == lines
    lasting.stderr.close()
    assert lasting.wait(60) == 7


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGHUP, 175), (signal.SIGINT, 130)])
def test_a_signal_ends_a_process_that_waits_in_native_code(signum, code):
    """A mutex that is locked twice blocks its thread for ever, without Python's lock, as a wait of TensorFlow does."""
    script = """
import ctypes, threading
from psrun import process
process._HANDLED_WITHIN_S = 0.2
stop = process.Stop()
stop.install(lambda interrupted: print(interrupted, flush=True))
native = ctypes.CDLL(None)
lock = ctypes.create_string_buffer(64)
native.pthread_mutex_lock(lock)
threading.Timer(0.3, lambda: print("waits", flush=True)).start()
native.pthread_mutex_lock(lock)
"""
    blocked = python(script)
    try:
        assert blocked.stdout.readline() == "waits\n"
        blocked.send_signal(signum)
        assert blocked.communicate(timeout=60)[0] == f"interrupted by {signum.name}\n"
        assert blocked.returncode == code
    finally:
        blocked.kill()  # SIGTERM would not end it


def test_what_a_library_makes_of_an_early_signal_is_the_signal():
    stop = process.Stop()
    replaced = ValueError("of a library, from what the handler raised in it")
    assert stop.reason_of(replaced) is replaced
    stop.signum = signal.SIGINT
    assert stop.reason_of(replaced).exit_code == 130
    assert stop.reason_of(ConfigError("model: mine.model failed")).exit_code == 130
    stop.defer(1.0)
    assert stop.reason_of(replaced) is replaced  # of a training that is about to end


SIGNALS = """
import os, signal, subprocess, sys, time
from psrun import process
stop = process.Stop()
stop.install()
stop.defer(60.0)
def send(*names):
    for name in names:
        os.kill(os.getpid(), getattr(signal, name))
        time.sleep(0.01)
"""


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        ("'SIGHUP', 'SIGHUP'", 0),  # a shell and the kernel both send it
        ("'SIGINT', 'SIGHUP'", 0),
        ("'SIGHUP', 'SIGTERM'", 175),
        ("'SIGHUP', 'SIGINT'", 130),
    ],
)
def test_a_second_signal_ends_at_once_but_for_sighup(sent, code):
    assert python(f"{SIGNALS}\nsend({sent})").wait(60) == code


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        ("'SIGTERM', 'SIGTERM'", 0),
        ("'SIGTERM', 'SIGINT'", 0),  # of psrun stop, while the run saves
        ("'SIGINT', 'SIGTERM'", 0),
        ("'SIGINT', 'SIGINT'", 130),
    ],
)
def test_a_scheduler_may_repeat_its_signals_and_a_user_insists(sent, code):
    assert python(f"{SIGNALS}\nstop.ignore_repeated()\nsend({sent})").wait(60) == code


def test_nohup_keeps_a_process_and_its_children_from_the_end_of_the_terminal():
    code = f"""{SIGNALS}
send("SIGHUP")
print(stop.signum, flush=True)
subprocess.run(["sh", "-c", "kill -HUP $$; echo on"])
"""
    nohup = subprocess.run(["nohup", sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert nohup.stdout == "None\non\n"


def test_an_interruption_that_is_discarded_ends_the_process_nevertheless():
    code = f"""{SIGNALS}
process._UNWOUND_WITHIN_S = 0.2
stop.defer(None)
try:
    send("SIGTERM")
except BaseException:
    time.sleep(60)
"""
    assert python(code).wait(60) == 175


def test_streams_that_the_caller_has_closed_are_no_place_for_files():
    code = (
        "from psrun import process; process.open_missing_streams(); print('lost')\n"
        "import os, sys; sys.stderr.write('lost'); os._exit(os.open(os.devnull, os.O_RDONLY))"
    )
    assert subprocess.run(["sh", "-c", f'exec {sys.executable} -c "$0" <&- >&- 2>&-', code]).returncode == 3


def test_exit_codes_of_children_are_kept_where_a_parent_ignores_them():
    code = (
        "import signal, subprocess; signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
        "from psrun import process; process.prepare(); print(subprocess.run(['false']).returncode)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "1\n"


def test_a_worker_of_a_launcher_outlives_an_interrupt_and_ends_with_its_parent():
    code = (
        "import os, signal, time; from psrun import process; process.begin_worker(os.getppid());"
        "[os.kill(os.getpid(), signum) for signum in (signal.SIGINT, signal.SIGHUP)];"
        "print('goes on', flush=True); time.sleep(60)"  # ended by its parent's end
    )
    parent = python(f"import subprocess, sys; subprocess.run([sys.executable, '-c', {code!r}])")
    assert parent.stdout is not None
    assert parent.stdout.readline() == "goes on\n"
    parent.kill()
    assert parent.communicate(timeout=30)[0] == ""  # the worker had the pipe too, and has ended
