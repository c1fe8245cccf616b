"""The native kernel against its NumPy reference, and the reference against the plainest possible loop."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from slosh.native import kernel, kernel_numpy
from slosh.native.arrays import Quantiles, Ragged

ROOT = Path(__file__).resolve().parents[2]
native = pytest.mark.skipif(kernel.native is None, reason="slosh was installed without its native kernel")


def collection(sizes, dim, kind="normal", weighted=False, seed=0):
    rng = np.random.default_rng(seed)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    points = rng.normal(size=(offsets[-1], dim))
    if kind == "ties":
        points = np.round(2 * points) / 2
    elif kind == "heavy":
        points = points**7
    elif kind == "constant":
        points = np.full_like(points, 3.0)
    elif kind == "far":
        points = points + 1000.0
    elif kind == "outlier":
        points[offsets[:-1]] = -1e6
    weights = None
    if weighted:
        weights = rng.uniform(0.1, 2.0, offsets[-1]) * (rng.random(offsets[-1]) > 0.2)
        weights[offsets[:-1]] = 1e-6 if kind == "outlier" else 0.5
        weights[offsets[1:] - 1] = 0.5
        weights = weights.astype(np.float32)
    return points.astype(np.float32), offsets, weights


def directions(n_slices, dim, seed=0):
    rows = np.random.default_rng(seed).normal(size=(n_slices, dim))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def run(embed, points, offsets, weights, theta, n_quantiles, average, reference=None, threads=1, n_slices=None):
    n_slices = len(theta) if theta is not None else n_slices
    n = len(offsets) - 1
    out, residual = np.full((n, n_slices * n_quantiles), np.nan, np.float32), np.full(n, np.nan) if average else None
    sets, rule = Ragged(points, offsets, weights), Quantiles(theta, reference, n_slices, n_quantiles, average, 0.5)
    embed(sets, rule, out, residual, *([threads] if embed is kernel.embed else []))
    return out, residual


def plain(points, offsets, weights, theta, n_quantiles, average):
    """One set, one slice, one bin at a time, in float64: the formulas of the documentation, word by word."""
    rows = []
    for a, b in pairwise(offsets):
        w = np.ones(b - a) if weights is None else weights[a:b].astype(np.float64)
        keep = w > 0
        row = []
        for direction in theta.astype(np.float64):
            s = points[a:b].astype(np.float64)[keep] @ direction
            order = np.lexsort((w[keep], s))
            s, cuts = s[order], np.cumsum(w[keep][order]) / w.sum()
            for m in range(n_quantiles):
                if not average:
                    row.append(np.interp((m + 1) / n_quantiles, cuts, s))
                    continue
                left, right = m / n_quantiles, (m + 1) / n_quantiles
                low = np.concatenate([[0.0], cuts[:-1]])
                overlap = np.clip(np.minimum(cuts, right) - np.maximum(low, left), 0, None)
                row.append(overlap @ s * n_quantiles)
        rows.append(row)
    return 0.5 * np.array(rows)


@pytest.mark.parametrize("average", [True, False])
@pytest.mark.parametrize("weighted", [False, True])
def test_reference_is_the_formula(average, weighted):
    points, offsets, weights = collection([1, 2, 3, 7, 7, 30], 3, weighted=weighted)
    theta = directions(4, 3)
    for n_quantiles in (1, 2, 5, 7, 40):
        expected = plain(points, offsets, weights, theta, n_quantiles, average)
        out, _ = run(kernel_numpy.embed, points, offsets, weights, theta, n_quantiles, average)
        np.testing.assert_allclose(out, expected, atol=1e-6)


def test_reference_residual_is_the_formula():
    points, offsets, weights = collection([1, 4, 9, 30], 2, weighted=True)
    theta, fine = directions(3, 2), 4096 * 9
    coarse, residual = run(kernel_numpy.embed, points, offsets, weights, theta, 8, True)
    curve, _ = run(kernel_numpy.embed, points, offsets, weights, theta, fine, True)
    gap = curve.reshape(4, 3, 8, -1) - coarse.reshape(4, 3, 8, 1)
    np.testing.assert_allclose(residual, (4 * gap.astype(np.float64) ** 2).mean(axis=(1, 2, 3)), rtol=1e-2, atol=1e-6)
    assert residual[0] == 0


# Sizes on both sides of every threshold of the kernel: tiles of 16, powers of two, 3,072 (selection) and 8,192 (radix
# sort).
SIZES = st.one_of(
    st.integers(1, 40), st.integers(41, 700), st.integers(701, 5000), st.sampled_from([3072, 3073, 8192, 8193])
)


@cache
def asked_of_the_reference(sizes, dim, n_slices, n_quantiles, kind, weighted, referred, seed):
    """Return a question, and the answers of the reference by either rule: once for all kernels, asked alike."""
    points, offsets, weights = collection(list(sizes), dim, kind, weighted, seed)
    reference = (
        np.random.default_rng(seed).normal(size=(n_slices, n_quantiles)).astype(np.float32) if referred else None
    )
    question = {"points": points, "offsets": offsets, "weights": weights, "theta": directions(n_slices, dim, seed)}
    question |= {"n_quantiles": n_quantiles, "reference": reference}
    return question, {average: run(kernel_numpy.embed, **question, average=average) for average in (True, False)}


@native
@settings(max_examples=60)
@given(
    sizes=st.lists(SIZES, min_size=1, max_size=3),
    dim=st.sampled_from([1, 2, 3, 7, 40]),
    n_slices=st.sampled_from([1, 3, 4, 5, 8, 13, 16, 17, 33]),
    n_quantiles=st.sampled_from([1, 2, 5, 16, 64, 333]),
    kind=st.sampled_from(["normal", "ties", "heavy", "constant", "far", "outlier"]),
    weighted=st.booleans(),
    referred=st.booleans(),
    seed=st.integers(0, 1000),
)
@example([5000, 1, 2], 3, 17, 16, "normal", False, True, 0)
@example([5000, 16], 2, 5, 16, "heavy", False, False, 1)
@example([9000, 16], 2, 5, 16, "ties", True, False, 1)
@example([4000], 2, 4, 3999, "normal", False, False, 2)
@example([3000, 20000], 1, 1, 16, "outlier", False, False, 0)
@example([17, 100, 1000, 9000], 2, 8, 16, "outlier", True, False, 0)
@example([140_000, 30], 2, 17, 16, "normal", True, False, 0)
def test_kernel_equals_reference(each_kernel, sizes, dim, n_slices, n_quantiles, kind, weighted, referred, seed):
    question, answers = asked_of_the_reference(tuple(sizes), dim, n_slices, n_quantiles, kind, weighted, referred, seed)
    points, theta = question["points"], question["theta"]
    size = np.abs(points @ theta.T).max() + 1
    for average, (expected, left_out) in answers.items():
        out, residual = run(kernel.embed, **question, average=average, threads=2)
        # Two almost equal values may change places in float32; the linear rule with weights then follows the other's
        # weight.
        loose = 1e-3 if weighted and not average else 2e-6
        assert np.abs(out - expected).max() <= loose * size
        if average:
            assert np.abs(np.sqrt(residual) - np.sqrt(left_out)).max() <= 2e-5 * size


@pytest.mark.parametrize("n", [3000, 20_000, 200_000])
def test_one_far_value_costs_the_others_no_digits(each_kernel, n):
    x = np.random.default_rng(0).normal(size=(n, 1)).astype(np.float32)
    x[0] = -1e6
    out, residual = run(kernel.embed, x, np.array([0, n]), None, np.ones((1, 1), np.float32), 16, True)
    ordered = np.sort(x[:, 0].astype(np.float64))
    bins = np.repeat(ordered, 16).reshape(16, n)
    np.testing.assert_allclose(2 * out[0], bins.mean(axis=1), rtol=2e-6, atol=2e-7)
    assert residual[0] == pytest.approx(bins.var(axis=1).mean(), rel=1e-5)


@pytest.mark.parametrize("rounding", [None, 1 / 256])
@pytest.mark.parametrize("n", [3073, 4099, 20_000, 150_001])
def test_selection_is_the_mean_of_every_bin(each_kernel, n, rounding):
    """Few elements a bucket and many, equal ones among them, and more elements than one count of a bucket holds."""
    x = np.random.default_rng(0).normal(size=(n, 1)).astype(np.float32)
    if rounding:
        x = (np.round(x / rounding) * rounding).astype(np.float32)
    out, residual = run(kernel.embed, x, np.array([0, n]), None, np.ones((1, 1), np.float32), 16, True)
    bins = np.repeat(np.sort(x[:, 0].astype(np.float64)), 16).reshape(16, n)
    np.testing.assert_allclose(2 * out[0], bins.mean(axis=1), rtol=2e-7, atol=1e-7)
    assert residual[0] == pytest.approx(bins.var(axis=1).mean(), rel=1e-5)


@pytest.mark.parametrize("n", [3073, 20_000, 150_001])
def test_slices_that_cannot_be_selected_in_stand_between_others(each_kernel, n):
    """Normal, constant, crowded by one far value, and of many equal values; with residuals and without."""
    x = np.random.default_rng(0).normal(size=(n, 4)).astype(np.float32)
    x[:, 1] = 3.0
    x[0, 2] = -1e6
    x[:, 3] = np.round(4 * x[:, 3]) / 4
    axes = np.array([0, 0, 2, 0, 1, 0, 3, 2, 2, 1, 1, 0, 0, 3, 3, 1, 2, 0, 1, 2, 3])
    theta, sets = np.eye(4, dtype=np.float32)[axes], Ragged(x, np.array([0, n]), None)
    out, _ = run(kernel.embed, x, sets.offsets, None, theta, 16, True)
    alone = np.full_like(out, np.nan)
    kernel.embed(sets, Quantiles(theta, None, len(theta), 16, True, 0.5), alone, None, 1)
    assert np.array_equal(out, alone)
    bins = np.repeat(np.sort(x.T.astype(np.float64), axis=1), 16, axis=1).reshape(4, 16, n)
    np.testing.assert_allclose(2 * out.reshape(-1, 16), bins.mean(axis=2)[axes], rtol=2e-6, atol=2e-7)


@native
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("sizes", [[1, 2, 15, 16, 17, 200], [3073, 5], [8192, 8193, 9001]])
def test_sort_equals_reference(each_kernel, sizes, weighted):
    points, offsets, weights = collection(sizes, 3, "normal", weighted)
    theta = directions(21, 3)
    values, _, carried = kernel.sort(Ragged(points, offsets, weights), theta, 21, 2)
    expected, _, mass = kernel_numpy.sort(Ragged(points, offsets, weights), theta, 21)
    np.testing.assert_allclose(values, expected, atol=2e-6)
    if weighted:
        np.testing.assert_allclose(
            np.add.reduceat(carried, offsets[:-1]), np.add.reduceat(mass, offsets[:-1]), rtol=1e-5
        )
        np.testing.assert_allclose((values * carried).sum(axis=0), (expected * mass).sum(axis=0), rtol=1e-4, atol=1e-2)
    else:
        assert carried is None


@pytest.mark.parametrize("n_slices", [1, 3, 16, 37])
@pytest.mark.parametrize("weighted", [False, True])
def test_projected_values_are_taken_as_they_are(each_kernel, n_slices, weighted):
    points, offsets, weights = collection([1, 5, 40, 4000], 6, weighted=weighted)
    theta = directions(n_slices, 6)
    values = (points.astype(np.float64) @ theta.T).astype(np.float32)
    there, _ = run(kernel.embed, points, offsets, weights, theta, 9, True)
    direct, _ = run(kernel.embed, values, offsets, weights, None, 9, True, n_slices=n_slices)
    np.testing.assert_allclose(direct, there, atol=3e-6)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("average", [True, False])
def test_same_bits_for_any_threads_and_batches(each_kernel, weighted, average):
    points, offsets, weights = collection([1, 9, 16, 33, 150, 700, 3100, 40, 2, 9000, 131_073], 3, weighted=weighted)
    theta = directions(21, 3)
    whole, residual = run(kernel.embed, points, offsets, weights, theta, 16, average)
    for threads in () if each_kernel == "numpy" else (2, 5):  # NumPy has one
        again, residual_again = run(kernel.embed, points, offsets, weights, theta, 16, average, threads=threads)
        assert np.array_equal(whole, again)
        assert not average or np.array_equal(residual, residual_again)
    for i in range(len(offsets) - 1):
        a, b = offsets[i], offsets[i + 1]
        mass = None if weights is None else weights[a:b]
        alone, left_out = run(kernel.embed, points[a:b], np.array([0, b - a]), mass, theta, 16, average)
        assert np.array_equal(alone[0], whole[i])
        assert not average or left_out[0] == residual[i]


@native
@pytest.mark.parametrize("weighted", [False, True])
def test_a_slice_does_not_depend_on_its_neighbours(each_kernel, weighted):
    points, offsets, weights = collection([9, 150, 4000, 9000], 3, weighted=weighted)
    points[:9] *= np.linspace(1, 1e4, 9)[:, None]
    theta = directions(40, 3)
    whole, _ = run(kernel.embed, points, offsets, weights, theta, 16, True)
    for n in (1, 5, 8, 13, 16, 24):
        part, _ = run(kernel.embed, points, offsets, weights, theta[:n], 16, True)
        assert np.array_equal(part, whole[:, : n * 16])


@pytest.mark.parametrize("size", [5, 150, 3500, 9000])
def test_permuting_changes_no_bit(each_kernel, size):
    points, offsets, _ = collection([size], 2, "normal")
    order = np.random.default_rng(1).permutation(size)
    theta = directions(20, 2)
    for average in (True, False):
        a, _ = run(kernel.embed, points, offsets, None, theta, 16, average)
        b, _ = run(kernel.embed, np.ascontiguousarray(points[order]), offsets, None, theta, 16, average)
        assert np.array_equal(a, b)


@native
def test_native_refuses_what_it_would_read_out_of_bounds():
    points, offsets, _ = collection([4, 5], 3)
    theta = directions(2, 3)
    bad = [
        ("offsets", {"offsets": np.array([0, 4, 10])}),
        ("point", {"offsets": np.array([0, 0, 9])}),
        ("directions", {"theta": directions(2, 4)}),
    ]
    for word, change in bad:
        arguments = {"points": points, "offsets": offsets, "weights": None, "theta": theta, **change}
        with pytest.raises(ValueError, match=word):
            run(kernel.embed, **arguments, n_quantiles=3, average=True)
    with pytest.raises(ValueError, match="weight"):
        run(kernel.embed, points, offsets, np.ones(3, np.float32), theta, 3, True)


def test_threads():
    assert kernel.threads(None) == 1
    assert kernel.threads(5) == 5
    assert kernel.threads(-1) >= 1
    assert kernel.threads(-1000) == 1
    for bad in (0, 1.5, "2", True):
        with pytest.raises(ValueError, match="n_jobs"):
            kernel.threads(bad)


def python(code, **environment):
    kept = {key: value for key, value in os.environ.items() if key != "SLOSH_KERNEL"}
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**kept, **environment},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )


def test_without_the_native_module_it_runs_and_says_so_once():
    code = (
        "import sys; sys.modules['slosh.native._native'] = None\n"
        "import slosh\n"
        "from slosh.native import kernel\n"
        "for _ in range(3): print(kernel.name(), slosh.distance([[0.0, 0.0]], [[3.0, 4.0]], slices='axis'))\n"
    )
    done = python(code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[0] == "numpy"
    assert done.stderr.count("without its native kernel") == 1


@pytest.mark.skipif(os.environ.get("SLOSH_KERNEL") == "numpy", reason="NumPy was asked for")
def test_where_there_is_a_compiler_there_is_a_kernel():
    """A kernel that does not compile would otherwise show as skipped tests only."""
    if not any(shutil.which(name) for name in ("c++", "g++", "clang++")):
        pytest.skip("no C++ compiler here")
    assert kernel.native is not None


def test_environment_chooses_the_kernel():
    code = "from slosh.native import kernel; print(kernel.name())"
    assert python(code, SLOSH_KERNEL="numpy").stdout.strip() == "numpy"
    if kernel.native is not None:
        assert python(code, SLOSH_KERNEL="generic").stdout.strip() == "generic"
        assert "no such kernel" in python(code, SLOSH_KERNEL="avx1024").stderr


@pytest.mark.parametrize("compiler", ["none", "broken"])
def test_installs_without_a_compiler(compiler, tmp_path):
    """A wheel is made all the same, for any machine, with everything but the kernel."""
    pytest.importorskip("scikit_build_core")
    source = tmp_path / "source"
    shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns(".*", "*.so", "build", "docs", "tests", "benchmarks"))
    if compiler == "broken":  # finds a compiler, but one that cannot do this
        (source / "src" / "slosh" / "native" / "kernel.cpp").write_text("#error no vector types here\n")
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(tmp_path)]
    wheel = [sys.executable, "-m", "pip", "wheel", *options]
    environment = {**os.environ, **({"CXX": "/bin/false"} if compiler == "none" else {})}
    done = subprocess.run([*wheel, str(source)], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (made,) = tmp_path.glob("*.whl")
    assert made.name.endswith("py3-none-any.whl")
    names = zipfile.ZipFile(made).namelist()
    assert "slosh/native/kernel_numpy.py" in names
    assert "slosh/py.typed" in names
    assert not [name for name in names if "_native" in name or name.endswith((".h", ".cpp"))]


SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize=vptr", "-fno-sanitize-recover=all"]
COMPILERS = {
    "here": ("c++", []),
    "arm64": ("aarch64-linux-gnu-g++", ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"]),
}


@pytest.mark.parametrize("machine", COMPILERS)
def test_generic_kernel_compiles_clean_and_sorts(machine, tmp_path, campaign):
    """The portable build, without a warning; for ARM it runs in an emulator, where there is one.

    Sanitizers take several times as long to compile, so they are for the long campaign.
    """
    compiler, emulator = COMPILERS[machine]
    if shutil.which(compiler) is None or (emulator and shutil.which(emulator[0]) is None):
        pytest.skip(f"no {compiler} or no {emulator[:1]} here")
    native_dir, program = ROOT / "src" / "slosh" / "native", tmp_path / "selftest"
    flags = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-Wno-maybe-uninitialized", "-Wno-psabi"]
    if campaign == "all" and not emulator:
        found = subprocess.run([compiler, "-print-file-name=libasan.so"], capture_output=True, text=True, check=False)
        flags += SANITIZERS if os.path.isabs(found.stdout.strip()) else []
    flags += ["-DSLOSH_ARCH=generic", "-DSLOSH_LANES=4", "-I", str(native_dir)]
    sources = [
        *(str(native_dir / name) for name in ("kernel.cpp", "search.cpp", "parts.cpp")),
        str(ROOT / "tests" / "native" / "selftest.cpp"),
    ]
    built = subprocess.run(
        [compiler, *flags, *sources, "-o", str(program)], capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr
    done = subprocess.run([*emulator, str(program)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all equal" in done.stdout
