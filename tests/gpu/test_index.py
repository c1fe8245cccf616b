"""Indexes whose vectors a GPU has made: what is recorded, what opens elsewhere, and what verify makes of it."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

import slosh
from builders import clouds
from slosh.embed import DistanceField, LocalShape, SlicedWasserstein, Whitened
from slosh.engines.spec import makers_after
from slosh.errors import InputError, UnsupportedError
from slosh.search import ExactSearch, HammingSearch, LadderSearch, LSHSearch

SETS = clouds([3, 9, 30, 2, 17] * 60, 3, 0)
GPU = "Pretended GPU"


@pytest.fixture(params=["memory", "folder"])
def place(request, tmp_path):
    return None if request.param == "memory" else tmp_path / "x.slosh"


def test_makers():
    assert makers_after(None, 0, "cpu") is None
    assert makers_after(None, 5, "cpu") is None
    assert makers_after(None, 0, "GPU") == ("GPU",)
    assert makers_after(None, 5, "GPU") == ("cpu", "GPU")
    assert makers_after(("GPU",), 5, "cpu") == ("GPU", "cpu")
    assert makers_after(("GPU", "cpu"), 5, "GPU") == ("GPU", "cpu")


def test_a_new_index_says_what_made_its_vectors(pretended_gpu, place):
    with slosh.SetIndex.create(place, dim=3, device="cuda") as index:
        assert index.info()["made_on"] == []
        index.add(SETS[:100])
        assert pretended_gpu.count("embed") >= 100
        assert index.info()["made_on"] == [GPU]
        before = pretended_gpu.count("embed")
        assert index.search(SETS[5], k=1).ids == ["5"]
        assert pretended_gpu.count("embed") == before + 1
        index.embedding.run_on(None)
        index.add(SETS[100:101])
        assert index.info()["made_on"] == [GPU, "cpu"]
        index.compact()
        assert index.info()["made_on"] == ["cpu"]
        assert index.verify().ok


def test_the_device_of_the_embedding_counts_where_none_is_given(pretended_gpu, place):
    embedding = SlicedWasserstein(16, 8, device="cuda")
    with slosh.SetIndex.create(place, dim=3, embedding=embedding) as index:
        index.add(SETS)
        assert index.info()["made_on"] == [GPU]
    with slosh.SetIndex.create(None, dim=3, embedding=embedding, device="cpu") as index:
        index.add(SETS)
        assert index.info()["made_on"] == ["cpu"]


@pytest.mark.parametrize(
    ("embedding", "search"),
    [
        (SlicedWasserstein(16, 8), None),
        (SlicedWasserstein(16, 8), ExactSearch()),
        (SlicedWasserstein(16, 8), HammingSearch(rerank=20)),
        (SlicedWasserstein(16, 8), HammingSearch()),
        (SlicedWasserstein(16, 8), LSHSearch()),
        (SlicedWasserstein(16, 8, quantiles="linear"), LadderSearch()),
        (DistanceField(16), None),
        (Whitened(SlicedWasserstein(16, 8)), None),
        (Whitened([SlicedWasserstein(16, 8), DistanceField(16)], power=0.5, normalize=False), None),
        (LocalShape(SlicedWasserstein(16, 8), (4,)), None),
    ],
)
def test_verify_compares_to_rounding_what_another_device_made(pretended_gpu, tmp_path, embedding, search):
    pytest.importorskip("torch")
    place = tmp_path / "x.slosh"
    with slosh.SetIndex.create(place, dim=3, embedding=embedding, search=search, sample=SETS, device="cuda") as index:
        index.add(SETS)
        for report in (index.verify(), index.verify(50)):
            assert report.ok, report
            assert f"on {GPU}, and compared to rounding" in report.checked["caches"]
        index.compact()
        assert index.verify().ok
    with slosh.open(place) as index:
        assert index.info()["made_on"] == [GPU]
        report = index.verify()
        assert report.ok, report
        assert f"made on {GPU}" in report.checked["caches"]


def test_verify_still_sees_vectors_that_are_wrong(pretended_gpu, monkeypatch):
    with slosh.SetIndex.create(None, dim=3, embedding=SlicedWasserstein(16, 8), device="cuda") as index:
        index.add(SETS)
        sound = SlicedWasserstein.index_vectors

        def wrong(self, sets, *, slack=True):
            vectors, own = sound(self, sets, slack=slack)
            vectors[0, 3] += np.float32(1e-4)
            return vectors, own

        monkeypatch.setattr(SlicedWasserstein, "index_vectors", wrong)
        report = index.verify()
        assert not report.ok
        assert "are wrong" in str(report)


def test_it_opens_without_the_gpu_and_is_not_made_again(pretended_gpu, tmp_path, monkeypatch):
    place = tmp_path / "x.slosh"
    with slosh.SetIndex.create(place, dim=3, device="cuda") as index:
        index.add(SETS)
    with slosh.open(place) as index:
        assert index.info()["embedded_on_open"] == 0
        assert index.search(SETS[7], k=1)[0].id == "7"
        n = pretended_gpu.count("embed")
        index.add(SETS[:3], ids=["a", "b", "c"])
        assert pretended_gpu.count("embed") == n
        assert index.info()["made_on"] == [GPU, "cpu"]
    for read_only in (False, True):
        with slosh.open(place, read_only=read_only, device="cuda") as index:
            assert index.info()["embedded_on_open"] == 0
            assert index.info()["made_on"] == [GPU, "cpu"]
            assert index.verify().ok
            assert pretended_gpu.count("embed") > n


def test_caches_that_are_made_again_elsewhere_are_no_damage(pretended_gpu, tmp_path):
    place = tmp_path / "x.slosh"
    with slosh.SetIndex.create(place, dim=3, device="cuda") as index:
        index.add(SETS)
    shutil.rmtree(place / "cache")
    with slosh.open(place) as index:
        assert index.info()["made_on"] == ["cpu"]
        assert index.verify().ok
    shutil.rmtree(place / "cache")
    with slosh.open(place, read_only=True, device="cuda") as index:  # which cannot record it
        assert index.info()["made_on"] == [GPU]
        assert index.verify().ok
    with slosh.open(place, device="cuda") as index:
        assert index.info()["made_on"] == [GPU]
    with slosh.open(place) as index:
        assert (index.info()["made_on"], index.info()["embedded_on_open"]) == ([GPU], 0)
        assert index.verify().ok


def test_vectors_of_a_gpu_need_no_certain_kernel(pretended_gpu, tmp_path, monkeypatch):
    """Those of a CPU are made again for another kind of CPU, whose bits differ; those of a GPU are not."""
    for name, device, again in (("there", "cuda", 0), ("here", None, len(SETS))):
        place = tmp_path / name
        with slosh.SetIndex.create(place, dim=3, device=device) as index:
            index.add(SETS)
        with monkeypatch.context() as patch:
            patch.setattr("slosh.native.kernel.name", lambda: "another")
            with slosh.open(place) as index:
                assert index.info()["embedded_on_open"] == again
                assert index.verify().ok


def test_a_reader_follows_a_writer_on_a_gpu(pretended_gpu, tmp_path):
    place = tmp_path / "x.slosh"
    with slosh.SetIndex.create(place, dim=3) as writer, slosh.open(place, read_only=True) as reader:
        writer.add(SETS[:50])
        assert reader.info()["made_on"] == ["cpu"]
        writer.embedding.run_on("cuda")
        writer.add(SETS[50:])
        assert reader.info()["made_on"] == ["cpu", GPU]
        assert reader.verify().ok


def test_what_is_stored_knows_of_no_device(pretended_gpu, tmp_path):
    with slosh.SetIndex.create(tmp_path / "x", dim=3, search=ExactSearch(device="cuda"), device="cuda") as index:
        assert index.spec.device == "cuda"
    with slosh.open(tmp_path / "x") as index:
        assert index.spec.device is None
        assert "device" not in repr(index.embedding) + repr(index.spec.search)


def test_a_copy_is_made_by_the_device_of_its_original(pretended_gpu, tmp_path):
    with slosh.SetIndex.create(None, dim=3, device="cuda") as index:
        index.add(SETS)
        index.copy_to(tmp_path / "copy")
        index.backup(tmp_path / "backup")
    for name in ("copy", "backup"):
        with slosh.open(tmp_path / name) as copied:
            assert copied.info()["made_on"] == [GPU]
            assert copied.verify().ok


def test_retraining_and_parts(pretended_gpu, tmp_path):
    with slosh.SetIndex.create(tmp_path / "x", dim=3, device="cuda") as index:
        index.add(SETS)
        index.enable("parts")
        assert index.info()["made_on"] == [GPU]
        assert index.verify().ok
        index.retrain(embedding=SlicedWasserstein(8, 4))
        assert index.embedding.device == "cuda"
        assert index.info()["made_on"] == [GPU]
        report = index.verify()
        assert report.ok, report
    with slosh.open(tmp_path / "x") as index:
        assert index.verify().ok


def test_certified_answers_hold_across_devices(pretended_gpu, tmp_path):
    with slosh.SetIndex.create(tmp_path / "x", dim=3, device="cuda") as index:
        index.add(SETS)
    with slosh.open(tmp_path / "x") as index:
        hits = index.search(SETS[3], k=5, rerank="sliced", certify=True)
        exact = slosh.pairwise(SETS[3:4], SETS, slices=index.embedding.slices_)[0]
        assert hits.ids == [str(i) for i in np.argsort(exact, kind="stable")[:5]]


def test_a_device_that_is_none_is_refused_before_anything_is_made(tmp_path):
    with pytest.raises(InputError, match="device='gpu'"):
        slosh.SetIndex.create(None, dim=3, device="gpu")
    with pytest.raises(InputError, match="device='gpu'"):
        slosh.SetIndex.create(tmp_path / "x", dim=3, embedding=SlicedWasserstein(device="gpu"))
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("device", ["gpu", "cuda", "cuda:7"])
def test_an_index_on_a_server_has_the_device_of_the_server_whatever_this_machine_has(device):
    with pytest.raises(UnsupportedError, match="leave device out"):
        slosh.open("http://localhost:1#x", device=device)


def test_an_index_on_a_server_has_the_device_of_the_server(pretended_gpu):
    for call in (slosh.open, lambda place, device: slosh.SetIndex.create(place, dim=3, device=device)):
        with pytest.raises(UnsupportedError, match="the server's device") as caught:
            call("http://localhost:1#x", device="cuda")
        assert caught.value.argument == "device"


def test_an_embedding_for_the_cpu_only_is_refused_before_anything_is_made(pretended_gpu, tmp_path):
    with pytest.raises(UnsupportedError, match="runs on the CPU only"):
        slosh.SetIndex.create(tmp_path / "x", dim=3, embedding=slosh.embed.MeanPool(), device="cuda")
    assert not (tmp_path / "x").exists()
    slosh.SetIndex.create(tmp_path / "x", dim=3, embedding=slosh.embed.MeanPool()).close()
    with pytest.raises(UnsupportedError, match="runs on the CPU only"):
        slosh.open(tmp_path / "x", device="cuda")
    slosh.open(tmp_path / "x").close()


def test_an_exact_search_of_an_index_scans_there(pretended_gpu, tmp_path):
    pytest.importorskip("torch")
    with slosh.SetIndex.create(tmp_path / "x", dim=3, search=ExactSearch(), device="cuda") as index:
        index.add(SETS)
        found = index.search(list(SETS[:20]), k=5)
        assert pretended_gpu.count("rows") == 1
    with slosh.open(tmp_path / "x") as index:
        for one, other in zip(index.search(list(SETS[:20]), k=5), found, strict=True):
            assert one.ids == other.ids
