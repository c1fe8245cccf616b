"""Cases for a GPU, as plain functions of a folder that they may write to: neither pytest nor hypothesis is needed.

What a GPU computes is compared with the NumPy reference, with the CPU, and with what the index promises.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import slosh
from slosh import errors
from slosh.data.sets import Sets
from slosh.embed import DistanceField, LocalShape, SlicedWasserstein, Whitened
from slosh.native import kernel, kernel_numpy
from slosh.native.arrays import Ragged
from slosh.search import ExactSearch


def why_not() -> str | None:
    """Return why nothing can be run here; None if it can."""
    from slosh.gpu.devices import checked_device

    try:
        checked_device("cuda")
    except (errors.DeviceError, errors.MissingExtra) as error:
        return f"no GPU: {error.problem}"
    return None


def machine() -> str:
    import torch

    from slosh.gpu.devices import device_name

    parts = device_name("cuda"), f"torch {torch.__version__}", f"numpy {np.__version__}", f"kernel {kernel.name()}"
    return ", ".join(parts)


def cases() -> Iterator[tuple[str, Callable[[Path], None]]]:
    """Yield the name of each case and what runs it."""
    for name, case in list(globals().items()):
        if name.startswith("check_"):
            for number, arguments in enumerate(getattr(case, "each", [{}])):
                words = "-".join(map(str, arguments.values())) or str(number)
                yield f"{name[6:]}[{words}]", partial(case, **arguments)


def each(**choices: Any) -> Callable[[Any], Any]:
    """Run a case with every combination of these arguments."""

    def mark(case: Any) -> Any:
        found: list[dict[str, Any]] = [{}]
        for name, values in choices.items():
            found = [{**one, name: value} for one in found for value in values]
        case.each = found
        return case

    return mark


def drawn(sizes: Any, dim: int, seed: int = 0, weighted: bool = False, ties: bool = False) -> Sets:
    random = np.random.default_rng(seed)
    sizes = np.asarray(sizes, np.int64)
    points = random.normal(size=(sizes.sum(), dim))
    if ties:
        points = np.round(points)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    weights = None
    if weighted:
        weights = random.uniform(0.1, 2, size=len(points))
        idle = random.random(len(points)) < 0.2
        idle[offsets[:-1]] = False  # of each set something counts
        weights[idle] = 0
        weights = weights.astype(np.float32)
    return Sets(points.astype(np.float32), offsets, weights)


MIXED = [1, 2, 3, 17, 31, 32, 33, 64, 150, 257, 1000, 1, 2048, 5]
SIZES = {
    "mixed": MIXED, "ones": [1] * 500, "many": np.random.default_rng(3).integers(1, 300, size=3000).tolist(),
    "large": [20000, 1, 7000, 20000], "512": [512] * 40,
}  # fmt: skip


def close(found: Any, expected: Any, scale: float = 1.0) -> None:
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-6 * scale)


def refused(kind: type[Exception], call: Callable[[], Any], *words: str) -> Any:
    """Return the error that a call must end with."""
    found: Any = None
    try:
        call()
    except kind as error:
        found = error
    assert found is not None, f"there was no {kind.__name__}"
    assert all(word in str(found) for word in words), f"{found} lacks one of {words}"
    return found


# The embedding


@each(sizes=list(SIZES), dim=[1, 2, 3, 16, 128], rule=["average", "linear"], weighted=[False, True])
def check_embedding_equals_the_reference(folder: Path, sizes: str, dim: int, rule: str, weighted: bool) -> None:
    from slosh.gpu.embedding import embed

    sets = drawn(SIZES[sizes], dim, weighted=weighted)
    if dim > 16:
        sets = sets[:40]
    model = SlicedWasserstein(24 if dim > 1 else 1, 16, quantiles=rule, reference="normal").fit(sets)
    scale = 1 / np.sqrt(model.vector_length)
    of_model = model.reference_, model.slices_
    asked = kernel_rule(*of_model, average=rule == "average", scale=scale)
    ragged = Ragged(sets.points, sets.offsets, sets.weights)
    found, expected = np.full((len(sets), model.vector_length), np.nan, np.float32), None
    expected = np.empty_like(found)
    left, exact_left = np.full(len(sets), np.nan), np.empty(len(sets))
    average = rule == "average"
    embed(ragged, asked, found, left if average else None, "cuda")
    kernel_numpy.embed(ragged, asked, expected, exact_left if average else None)
    # With weights the linear rule jumps where two elements are as far along a slice, but for rounding: it is the order
    # of their weights that decides.
    apart = np.abs(found - expected) > 2e-5 * np.abs(expected) + 2e-5 * scale
    assert apart.mean() <= (1e-5 if weighted and not average else 0), f"{apart.sum()} of {apart.size} numbers"
    if average:
        np.testing.assert_allclose(left, exact_left, rtol=1e-4, atol=1e-6)
        slack = model.rounding(expected, np.sqrt(exact_left))
        assert (np.linalg.norm(found.astype(float) - expected, axis=1) <= slack).all()


def kernel_rule(reference: Any, directions: Any, *, average: bool, scale: float) -> Any:
    from slosh.native.arrays import Quantiles

    return Quantiles(directions, reference, *reference.shape, average, scale)


@each(dim=[1, 4, 5, 6, 16, 31, 33, 128, 387], how=["plain", "tensor", "tf32"])
def check_products_are_as_accurate_as_their_factors(folder: Path, dim: int, how: Any) -> None:
    import torch

    from slosh.gpu import projection

    random = np.random.default_rng(dim)
    for n, n_slices in ((1, 1), (127, 65), (1000, 64), (130, 200)):
        points = torch.tensor(random.normal(size=(n + 1, dim)) * 10.0 ** random.integers(-3, 4), dtype=torch.float32)
        slices = torch.nn.functional.normalize(torch.tensor(random.normal(size=(n_slices, dim)), dtype=torch.float32))
        exact = slices.double() @ points.double().T
        # What each term may be off by, of its size: float32 rounds once a step, and TF32 rounds both factors.
        step = 2.0**-10 * 1.01 if how == "tf32" else 0.0
        size = slices.double().abs() @ points.double().abs().T
        allowed = (step + 2.0**-24 * (dim + 32)) * size
        there, along = points.cuda(), slices.cuda()
        found = []
        for first in (0, 1):  # rows that begin at 16 bytes, and rows that do not
            values = torch.full((n_slices, (n + 4) // 4 * 4 + 4), torch.nan, device="cuda")
            projection.project_by(how, there[first:], along, values)
            own = values[:, : n + 1 - first].cpu()
            assert ((own.double() - exact[:, first:]).abs() <= allowed[:, first:]).all()
            assert values[:, n + 1 - first :].isnan().all(), "something was written beyond the last point"
            found.append(own)
        assert torch.equal(found[0][:, 1:], found[1])
        if how == "tensor" and dim >= 16 and n > 100:
            values = torch.empty((n_slices, (n + 4) // 4 * 4), device="cuda")
            projection.project_by("plain", there, along, values)
            plain = (values[:, : n + 1].cpu().double() - exact).square().mean()
            assert (found[0].double() - exact).square().mean() <= 4 * plain


@each(sizes=["mixed", "large"], rule=["average", "linear"], weighted=[False, True])
def check_tf32_rounds_factors_and_nothing_else(folder: Path, sizes: str, rule: str, weighted: bool) -> None:
    for dim in (3, 63, 64):
        sets = drawn(SIZES[sizes], dim, weighted=weighted)
        model = SlicedWasserstein(24, 16, quantiles=rule, device="cuda").fit(sets)
        exact = model.transform(sets)
        found = model.set_params(tf32=True).fit(sets).transform(sets)
        if dim < 64:
            np.testing.assert_array_equal(found, exact)
            continue
        longest = np.maximum.reduceat(np.linalg.norm(sets.points, axis=1), sets.offsets[:-1])
        apart = np.abs(found - exact).max(axis=1) * np.sqrt(model.vector_length)
        if not (weighted and rule == "linear"):  # it jumps where elements change places
            assert (apart <= 2.0**-10 * 1.01 * longest).all()
        assert apart.max() > 2.0**-16 * longest.max()  # where this GPU has tensor cores for it


@each(n=[20_001, 1_000_001], sixteenths=[7, 15])
def check_residuals_where_equal_elements_end_just_behind_a_bin(folder: Path, n: int, sixteenths: int) -> None:
    points = np.full((n, 1), 0.7, np.float32)
    points[: n * sixteenths // 16 + 1] = 0
    sets = [np.random.default_rng(0).permutation(points)]
    model = SlicedWasserstein(1, 16).fit(sets)
    here, expected = model.transform(sets, return_residual=True)
    there, found = model.set_params(device="cuda").transform(sets, return_residual=True)
    assert np.abs(found - expected) <= 2 * model.rounding(here, expected)
    assert np.linalg.norm(there - here) <= 2 * model.rounding(here, expected)


@each(weighted=[False, True], rule=["average", "linear"])
def check_embedding_with_ties(folder: Path, weighted: bool, rule: str) -> None:
    sets = drawn(MIXED * 3, 2, weighted=weighted, ties=True)
    here = SlicedWasserstein(slices="axis", quantiles=rule).fit(sets)
    there = pickle.loads(pickle.dumps(here)).set_params(device="cuda")
    close(there.transform(sets), here.transform(sets))


@each(n=[0, 1, 2, 70_000])
def check_embedding_of_any_number_of_sets(folder: Path, n: int) -> None:
    here = SlicedWasserstein(16, 8).fit(drawn([5], 3))
    there = SlicedWasserstein(16, 8, device="cuda").fit(drawn([5], 3))
    sets = drawn(np.random.default_rng(0).integers(1, 9, size=n), 3)
    found = there.transform(sets)
    assert found.shape == (n, 128)
    close(found, here.transform(sets))
    close(there.transform(iter([sets])) if n else found, found)


@each(dim=[3, 8, 64, 70], tf32=[False, True])
def check_vectors_do_not_depend_on_the_batch(folder: Path, dim: int, tf32: bool) -> None:
    sets = drawn(SIZES["many"], dim)
    model = SlicedWasserstein(64, 16, device="cuda", tf32=tf32).fit(sets)
    vectors = model.transform(sets)
    for some in (slice(0, 1), slice(5, 9), slice(100, 1300)):
        np.testing.assert_array_equal(model.transform(sets[some]), vectors[some])


def check_one_set_that_is_larger_than_a_batch(folder: Path) -> None:
    sets = drawn([3_000_000, 2], 2)
    here = SlicedWasserstein(4, 16).fit(sets)
    close(SlicedWasserstein(4, 16, device="cuda").fit(sets).transform(sets), here.transform(sets))


def check_bounds_hold(folder: Path) -> None:
    sets = drawn(MIXED, 3, weighted=True)
    model = SlicedWasserstein(32, 16, device="cuda").fit(sets)
    lower, upper = model.bounds(sets, sets)
    exact = slosh.pairwise(sets, sets, slices=model.slices_)
    assert (lower <= exact).all()
    assert (exact <= upper).all()


def check_references_that_are_learnt(folder: Path) -> None:
    sets = drawn(MIXED * 3, 3)
    for reference in ("barycenter", "kmeans"):
        here = SlicedWasserstein(16, 8, reference=reference).fit(sets)
        there = SlicedWasserstein(16, 8, reference=reference, device="cuda").fit(sets)
        close(there.reference_, here.reference_, 10)


def check_wrong_input_is_refused_as_on_the_cpu(folder: Path) -> None:
    model = SlicedWasserstein(8, device="cuda").fit(drawn([5], 3))
    for wrong in (np.nan, np.inf, -np.inf):
        points = np.zeros((4, 3))
        points[2, 1] = wrong
        error = refused(errors.InputError, lambda points=points: model.transform([points, points]))
        assert error.set == 0
        assert error.element == 2
    refused(errors.InputError, lambda: model.transform([np.zeros((4, 2))]))
    refused(errors.InputError, lambda: model.transform([np.array([["a", "b", "c"]])]))
    refused(errors.InputError, lambda: model.set_params(device="gpu").transform([np.zeros((4, 3))]), "device='gpu'")
    error = refused(errors.DeviceError, lambda: model.set_params(device="cuda:77").transform([np.zeros((4, 3))]))
    assert error.reason == "no such number"
    refused(
        errors.UnsupportedError,
        lambda: SlicedWasserstein(slices=slosh.slices.Circular(), device="cuda").fit_transform([np.zeros((4, 2))]),
    )


def check_a_forked_process_says_so(folder: Path) -> None:
    SlicedWasserstein(8, device="cuda").fit_transform([np.zeros((4, 2))])
    child = os.fork()
    if not child:
        try:
            SlicedWasserstein(8, device="cuda").fit_transform([np.zeros((4, 2))])
        except errors.DeviceError as error:
            os._exit(0 if error.reason == "forked" else 3)
        except BaseException:
            os._exit(4)
        os._exit(5)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def check_a_gpu_that_is_hidden_is_an_error(folder: Path) -> None:
    code = (
        "import numpy as np; from slosh import errors; from slosh.embed import SlicedWasserstein\n"
        "try: SlicedWasserstein(device='cuda').fit([np.zeros((4, 2))])\n"
        "except errors.DeviceError as error: print(error.reason)"
    )
    path = os.pathsep.join(map(str, sys.path))
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": path},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert ran.stdout.strip() in ("no GPU", "driver"), ran.stdout + ran.stderr


def check_it_runs_beside_the_settings_of_others(folder: Path) -> None:
    import torch

    from slosh.torch import SlicedWassersteinPool

    sets = drawn([40] * 50, 8)
    here = Whitened(SlicedWasserstein(16, 8)).fit(sets)
    expected = here.transform(sets)
    heavy = drawn([5000, 300], 8, weighted=True)  # of which torch operations embed the larger
    sliced = SlicedWasserstein(16, 8).fit(heavy)
    alone = sliced.transform(heavy)
    layer, points = SlicedWassersteinPool(8, 16, 8).cuda(), torch.tensor(sets.points).cuda().requires_grad_()

    def of_layer() -> Any:
        """Return the gradient of the points in the layer."""
        points.grad = None
        layer(points, torch.tensor(sets.offsets).cuda()).square().sum().backward()
        return points.grad.cpu().numpy()

    gradient, before = of_layer(), torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            here.run_on("cuda")
            close(here.transform(sets), expected, 10)
            close(sliced.set_params(device="cuda").transform(heavy), alone)
            close(of_layer(), gradient, 10)
        assert torch.backends.cuda.matmul.allow_tf32
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


# Fields and maps


@each(dim=[1, 2, 3, 8, 64], weighted=[False, True])
def check_fields_equal_the_reference(folder: Path, dim: int, weighted: bool) -> None:
    from slosh.gpu.field import field

    sets = drawn([*MIXED, 20_000], dim, weighted=weighted)
    anchors = np.random.default_rng(1).normal(size=(100, dim)).astype(np.float32)
    anchors[:3] = sets.points[[0, 1, 40]]
    anchors[3] = np.nextafter(anchors[0], np.float32(np.inf))
    ragged = Ragged(sets.points, sets.offsets, sets.weights)
    found, exact = np.empty((len(sets), 100), np.float32), np.empty((len(sets), 100))
    field(ragged, anchors, found, "cuda")
    kernel_numpy.field(ragged, anchors, exact)
    assert (found[exact == 0] == 0).all()
    np.testing.assert_allclose(found, exact, rtol=1e-6 * (dim + 8), atol=1e-30)


def check_fields_in_an_embedding(folder: Path) -> None:
    sets = drawn(SIZES["many"], 3)
    here = DistanceField(64).fit(sets)
    there = DistanceField(anchors=here.anchors_, device="cuda").fit(sets)
    away = np.abs(there.transform(sets) - here.transform(sets)).max(axis=1)
    assert (away <= 2 * here.rounding(here.transform(sets))).all()


@each(n=[30, 2000], dim=[3, 20], weighted=[False, True])
def check_whitened(folder: Path, n: int, dim: int, weighted: bool) -> None:
    """In few dimensions all is made on the GPU, in many of them fields come back to the host before they are mapped."""
    from slosh.gpu import pipeline

    sets = drawn(np.random.default_rng(n).integers(5, 60, size=n), dim, weighted=weighted)
    here = Whitened([SlicedWasserstein(32, 8), DistanceField(64)]).fit(sets)
    expected, before = here.transform(sets), pipeline.PIECE_BYTES
    here.run_on("cuda")
    close(here.transform(sets), expected, 10)
    close(Whitened(here, 8, device="cuda").fit(sets).transform(sets).shape, (n, 8))
    try:
        pipeline.PIECE_BYTES = 10_000
        close(here.transform(sets), expected, 10)
    finally:
        pipeline.PIECE_BYTES = before


def check_local_shape(folder: Path) -> None:
    sets = drawn([30] * 40, 3)
    here = LocalShape(SlicedWasserstein(16, 8), (5,)).fit(sets)
    expected = here.transform(sets)
    here.run_on("cuda")
    close(here.transform(sets), expected, 10)


# The scan


@each(n=[1, 100, 50_000], dim=[3, 64, 1000], kind=["normal", "ties", "far", "huge", "outlier"])
def check_scan_equals_that_of_the_cpu(folder: Path, n: int, dim: int, kind: str) -> None:
    if n * dim > 4_000_000:
        n = 4_000_000 // dim
    random = np.random.default_rng(0)
    vectors = random.normal(size=(n, dim)).astype(np.float32)
    if kind == "ties":
        vectors = np.round(vectors)
    elif kind == "far":
        vectors += 1000
    elif kind == "huge":
        vectors *= 1e17
    elif kind == "outlier":
        vectors[-1] *= 1e7
    queries = np.concatenate([vectors[:20], random.normal(size=(20, dim)).astype(np.float32)])
    here, there = ExactSearch(), ExactSearch(device="cuda")
    for one in (here, there):
        one.add(vectors)
        if n > 1:
            one.remove(np.arange(0, n, 7))
    allowed = random.random(n) < 0.3
    if not len(here):
        return
    for k in (1, 10, 300):
        for given in (None, allowed):
            (d, rows), (e, expected) = (one.search(queries, k, allowed=given) for one in (there, here))
            np.testing.assert_array_equal(rows, expected)
            np.testing.assert_array_equal(d, e)
    radii = here.search(queries, 5).distances[:, -1]
    found, exact = (one.range_search(queries, radii) for one in (there, here))
    np.testing.assert_array_equal(found.rows, exact.rows)
    np.testing.assert_array_equal(found.distances, exact.distances)


def check_scan_of_more_than_one_chunk_and_growing(folder: Path) -> None:
    from slosh.gpu import scan

    random = np.random.default_rng(0)
    vectors, queries = (random.normal(size=(n, 64)).astype(np.float32) for n in (300_000, 1500))
    here, there, before = ExactSearch(), ExactSearch(device="cuda"), scan.CHUNK_NUMBERS
    try:
        scan.CHUNK_NUMBERS = 1 << 22
        for part in (vectors[:200_000], vectors[200_000:]):
            for one in (here, there):
                one.add(part)
            (d, rows), (e, expected) = (one.search(queries, 10) for one in (there, here))
            np.testing.assert_array_equal(rows, expected)
            np.testing.assert_array_equal(d, e)
    finally:
        scan.CHUNK_NUMBERS = before
    there.save(folder / "x.search")
    assert ExactSearch.load(folder / "x.search").device is None


def check_scan_without_room(folder: Path) -> None:
    from slosh.gpu import scan

    random = np.random.default_rng(0)
    vectors, queries = (random.normal(size=(n, 64)).astype(np.float32) for n in (50_000, 40))
    whole, before = scan.DeviceRows(vectors, "cuda"), scan.ROOM_PART
    try:
        scan.ROOM_PART = 1  # all of the memory is to stay free
        crowded = scan.DeviceRows(vectors, "cuda", room=1 << 60)
    finally:
        scan.ROOM_PART = before
    assert crowded.n_bytes == 0
    assert whole.n_bytes >= vectors.nbytes
    for (_, found), (_, expected) in zip(
        crowded.nearest(queries, 5, None), whole.nearest(queries, 5, None), strict=True
    ):
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_array_equal(a, b)


# Memory


def check_a_full_memory_is_an_error_that_says_so(folder: Path) -> None:
    import torch

    sets = drawn([150] * 2000, 3)
    model = SlicedWasserstein(64, 16, device="cuda").fit(sets)
    field = DistanceField(anchors=np.zeros((2000, 3)), device="cuda").fit(sets)
    expected = model.transform(sets)
    fields, total = field.transform(sets), torch.cuda.get_device_properties(0).total_memory
    try:
        for room, is_enough in ((4 << 30, True), (1 << 20, False)):
            torch.cuda.empty_cache()
            torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + room) / total)
            for one, wanted in ((model, expected), (field, fields)):
                if is_enough:
                    np.testing.assert_array_equal(one.transform(sets), wanted)
                else:
                    full = refused(errors.DeviceMemoryError, partial(one.transform, sets), "cannot hold")
                    assert full.reason == "memory"
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    np.testing.assert_array_equal(model.transform(sets), expected)


# Indexes


@each(kind=["sliced", "field", "whitened"])
def check_an_index_built_there_opens_on_the_cpu(folder: Path, kind: str) -> None:
    plain = SlicedWasserstein(32, 16)
    embedding = {"sliced": plain, "field": DistanceField(64), "whitened": Whitened(plain)}[kind]
    sets = drawn(np.random.default_rng(0).integers(5, 60, size=3000), 3)
    place = folder / "x.slosh"
    name = machine().split(",")[0]
    with slosh.SetIndex.create(place, dim=3, embedding=embedding, sample=sets[:500], device="cuda") as index:
        index.add(sets)
        assert index.info()["made_on"] == [name]
        report = index.verify(300)
        assert report.ok, report
        found = index.search(sets[:50], k=5, recall=1.0)
        index.copy_to(folder / "copy.slosh")
    with slosh.open(place) as index:
        about = index.info()
        assert (about["made_on"], about["embedded_on_open"]) == ([name], 0)
        report = index.verify()
        assert report.ok, report
        assert "compared to rounding" in report.checked["caches"]
        here = index.search(sets[:50], k=5, recall=1.0)
        for one, other in zip(here, found, strict=True):
            assert one.ids[0] == other.ids[0]
            np.testing.assert_allclose(one.distances, other.distances, rtol=1e-4, atol=1e-4)
        index.add(sets[:10], ids=[f"again {i}" for i in range(10)])
        assert index.info()["made_on"] == [name, "cpu"]
        assert index.verify(500).ok
    with slosh.open(place, device="cuda") as index:
        assert index.verify(500).ok
        index.compact()
        assert index.info()["made_on"] == [name]


def check_certified_answers_are_those_of_all_distances(folder: Path) -> None:
    sets = drawn(np.random.default_rng(0).integers(5, 60, size=400), 3)
    with slosh.SetIndex.create(folder / "x.slosh", dim=3, device="cuda") as index:
        index.add(sets)
    with slosh.open(folder / "x.slosh") as index:
        exact = slosh.pairwise(sets[:20], sets, slices=index.embedding.slices_)
        for hits, distances in zip(index.search(sets[:20], k=5, rerank="sliced", certify=True), exact, strict=True):
            assert hits.ids == [str(i) for i in np.argsort(distances, kind="stable")[:5]]


def check_an_exact_search_of_an_index(folder: Path) -> None:
    sets = drawn(np.random.default_rng(0).integers(5, 60, size=3000), 3)
    with slosh.SetIndex.create(folder / "x.slosh", dim=3, search=ExactSearch(), device="cuda") as index:
        index.add(sets)
        there = index.search(sets[:100], k=10)
        index.spec.search.device = None
        index.embedding.run_on(None)
        here = index.search(sets[:100], k=10)
    for one, other in zip(here, there, strict=True):
        assert one.ids[0] == other.ids[0]
        np.testing.assert_allclose(one.distances, other.distances, rtol=1e-4, atol=1e-5)


def check_a_saved_embedding_runs_on_the_cpu(folder: Path) -> None:
    sets = drawn([40] * 300, 3)
    model = Whitened([SlicedWasserstein(16, 8), DistanceField(32)], device="cuda").fit(sets)
    slosh.save_embedding(model, folder / "x")
    loaded = slosh.load_embedding(folder / "x")
    assert loaded.made_on == "cpu"
    close(loaded.transform(sets), model.transform(sets), 10)
    same = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(same.transform(sets), model.transform(sets))
