"""The command as a process: exit codes, pipes, Ctrl-C, warnings, the terminal."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
import warnings
from importlib.metadata import entry_points

import numpy as np
import pytest

from slosh.cli import main
from slosh.cli.process import run

SLOSH = [sys.executable, "-m", "slosh"]


def test_the_main_way_in_real_processes(tmp_path, process, write_clouds):
    write_clouds(tmp_path / "clouds")
    done = process("build", "a.slosh", "clouds", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "built 12 sets" in done.stdout
    done = process("search", "a.slosh", "thin/0000.npy", "-k", 3, "--json", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert found["query"] == "thin/0000.npy"
    assert len(found["hits"]) == 3
    assert all(hit["id"] != "thin/0000.npy" for hit in found["hits"])
    done = process("search", "a.slosh", "nothing.npy", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr
    assert process("search", "a.slosh", "--nonsense", cwd=tmp_path).returncode == 2


def test_the_traceback_is_shown_when_asked_for(tmp_path, process):
    done = process("info", "nothing", cwd=tmp_path, env={**os.environ, "SLOSH_DEBUG": "1"})
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert done.stderr.rstrip().endswith("slosh build")


def test_a_closed_pipe_is_silent(built):
    np.savez(built / "many.npz", points=np.random.default_rng(0).normal(size=(9000, 2)), offsets=np.arange(0, 9001, 3))
    command = f"{shlex.join(SLOSH)} search clouds.slosh many.npz --json | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], cwd=built, capture_output=True, text=True, timeout=900)
    line, code = done.stdout.splitlines()
    assert json.loads(line)["query"] == "many/0"
    assert (code, done.stderr) == ("141", "")


@pytest.mark.parametrize(
    ("code", "unused"),
    [
        ("import slosh", ("numpy", "typer", "rich", "slosh.cli")),
        ("import slosh; dir(slosh); slosh.errors.InputError", ("numpy", "typer")),
        ("from slosh.cli import main; main(['--version'])", ("numpy", "rich")),
        *((f"from slosh.cli import main; main({asked})", ("numpy",)) for asked in (["--help"], ["search", "--help"])),
    ],
)
def test_what_is_slow_to_import_is_imported_late(tmp_path, code, unused):
    slow = ("sklearn", "scipy", "pandas", "joblib", "matplotlib", *unused)
    check = f"import sys; {code}; print([name for name in {slow} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", check], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_command_is_installed():
    (found,) = [each for each in entry_points(group="console_scripts") if each.name == "slosh"]
    assert found.load() is main


def test_ctrl_c_leaves_a_valid_index(tmp_path, process, stored, write_clouds, capsys):
    n = 1500
    write_clouds(tmp_path / "clouds", n)
    arguments = [*SLOSH, "build", "a.slosh", "clouds", "--batch-points", "50"]  # a transaction for each set
    child = subprocess.Popen(arguments, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 240
        while stored(tmp_path / "a.slosh") < 5:
            assert child.poll() is None, child.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=900)
    finally:
        child.kill()
        child.wait()
    assert child.returncode == 130, err
    assert out == ""
    assert "Traceback" not in err
    assert "slosh add a.slosh clouds --batch-points 50 --skip-existing" in err
    stored = stored(tmp_path / "a.slosh")
    assert 5 <= stored < n
    assert f"{stored:,} sets" in err
    done = process("verify", "a.slosh", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "intact" in done.stdout
    capsys.readouterr()
    assert main(["add", str(tmp_path / "a.slosh"), str(tmp_path / "clouds"), "--skip-existing", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["added"] == n - stored
    assert main(["verify", str(tmp_path / "a.slosh")]) == 0


def test_ctrl_c_is_acknowledged_while_a_change_is_stored(tmp_path):
    script = """
import os, signal, sys
from slosh.cli.process import run

def work():
    came = []
    before = signal.signal(signal.SIGINT, lambda *about: came.append(about))
    os.kill(os.getpid(), signal.SIGINT)
    sys.stdin.readline()
    print("stored", came != [], flush=True)
    signal.signal(signal.SIGINT, before)
    if came:
        raise KeyboardInterrupt
    print("never")

sys.exit(run(work))
"""
    arguments, pipe = [sys.executable, "-c", script], subprocess.PIPE
    child = subprocess.Popen(arguments, cwd=tmp_path, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    try:
        assert child.stderr.readline() == "slosh: finishing what is being stored ...\n"
        assert child.poll() is None  # said while it works
        said, errors = child.communicate("go on\n", timeout=900)
        assert (child.returncode, said, errors) == (130, "stored True\n", "slosh: stopped\n")
    finally:
        child.kill()
        child.communicate()


def test_ctrl_c_elsewhere_stops_at_once(capsys):
    before = signal.set_wakeup_fd(-1)
    assert before == -1

    def work():
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(60)

    assert run(work) == 130
    assert capsys.readouterr().err == "slosh: stopped\n"
    assert signal.set_wakeup_fd(-1) == -1
    assert not [each for each in threading.enumerate() if each.name == "slosh-ctrl-c"]


def test_warnings_go_back_to_what_they_were(slosh_):
    before = warnings.showwarning
    slosh_("info", "clouds.slosh")
    assert warnings.showwarning is before
