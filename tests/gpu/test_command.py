"""--device of the commands that embed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from slosh.cli import main
from slosh.gpu import devices


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    (tmp_path / "clouds").mkdir()
    for i in range(30):
        np.save(tmp_path / "clouds" / f"{i}.npy", random.normal(size=(int(random.integers(3, 40)), 2)))

    def call(*arguments):
        capsys.readouterr()
        code = main(list(arguments))
        out, err = capsys.readouterr()
        return code, out, err

    return call


def test_commands_that_embed_take_a_device(pretended_gpu, run):
    code, _, err = run("build", "x.slosh", "clouds", "--device", "cuda")
    assert (code, err) == (0, "")
    assert pretended_gpu.count("embed") >= 30
    code, out, _ = run("info", "x.slosh")
    assert "made on" in out
    assert pretended_gpu.name in out
    assert json.loads(run("info", "x.slosh", "--json")[1])["made_on"] == [pretended_gpu.name]
    for line in (
        ["search", "x.slosh", "clouds/3.npy"],
        ["add", "x.slosh", "clouds", "--update"],
        ["verify", "x.slosh"],
        ["compact", "x.slosh"],
        ["retrain", "x.slosh", "--embedding", "sliced", "--slices", "8"],
    ):
        for given, least in (([], 0), (["--device", "cuda"], 1)):
            pretended_gpu.calls.clear()
            code, _, err = run(*line, *given)
            assert code == 0, err
            assert min(pretended_gpu.count("embed"), 1) == least, line


def test_an_index_of_the_cpu_says_nothing_of_devices(run):
    run("build", "x.slosh", "clouds")
    assert "made on" not in run("info", "x.slosh")[1]
    assert json.loads(run("info", "x.slosh", "--json")[1])["made_on"] == ["cpu"]


def test_what_cannot_be_used_is_said_in_the_words_of_the_command(run, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(devices, "_names", {})
    monkeypatch.setattr(torch.version, "cuda", None)
    code, out, err = run("build", "x.slosh", "clouds", "--device", "cuda")
    assert (code, out) == (1, "")
    assert "or leave --device out" in err
    assert not Path("x.slosh").exists()
    code, _, err = run("build", "x.slosh", "clouds", "--device", "gpu")
    assert code == 1
    assert '--device: device=\'gpu\': give "cpu", "cuda"' in err


def test_an_embedding_for_the_cpu_only_and_a_server(pretended_gpu, run):
    code, _, err = run("build", "x.slosh", "clouds", "--embedding", "mean", "--device", "cuda")
    assert code == 1
    assert err.rstrip().endswith("leave --device out")
    code, _, err = run("search", "http://localhost:1#x", "clouds/3.npy", "--device", "cuda")
    assert code == 1
    assert err.rstrip().endswith("the server's device: leave --device out")


def test_the_command_to_go_on_with_has_the_device(pretended_gpu, run, tmp_path, monkeypatch):
    np.save(tmp_path / "clouds" / "99.npy", np.full((3, 2), np.nan))
    code, _, err = run("build", "x.slosh", "clouds", "--device", "cuda", "--batch-points", "10")
    assert code == 1
    assert "--skip-existing --device cuda" in err
