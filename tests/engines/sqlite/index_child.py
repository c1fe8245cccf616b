"""Other processes for the tests of the SQLite engine: they write, read, and are killed.

Run by `python index_child.py`. It imports slosh once, then forks a child for each line of standard input, a JSON list
[name of a function, arguments], and prints the child's number, then its exit status: two hundred processes cost two
hundred forks. A function of another module is "module:function".
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
import traceback
from contextlib import suppress
from functools import lru_cache
from importlib import import_module
from pathlib import Path

import numpy as np

import slosh
from slosh.embed import SlicedWasserstein

DIM = 2


@lru_cache(10_000)
def points_of(name, version):
    """Return the points of a set, which follow from its id and its version; a few sets are equal."""
    rng = np.random.default_rng([int(name) % 900, version])
    return (rng.normal(size=(int(rng.integers(1, 6)), DIM)) + rng.normal(size=DIM)).astype(np.float32)


def metadata_of(name, version, batch):
    return {"version": version, "batch": batch, "mod": int(name) % 3, "tags": [f"t{version}", f"b{batch}"]}


def options(**more):
    return {"embedding": SlicedWasserstein(n_slices=4, n_quantiles=4, n_jobs=1), "n_jobs": 1, **more}


# -- a model: {id: [version of the points, version of the metadata, batch]} --------------------------------------------


def made(path, n, **more):
    """Create an index of n sets, and return it with its model."""
    index = slosh.SetIndex.create(path, DIM, **options(**more))
    model = {str(i): [0, 0, -1] for i in range(n)}
    if n:
        about = [metadata_of(name, 0, -1) for name in model]
        index.add([points_of(name, 0) for name in model], list(model), about)
    return index, model


def is_model(index, model):
    """Return whether an index holds a model, all of it and nothing else."""
    if sorted(index.ids) != sorted(model):
        return False
    found = index.get(list(model))
    expected = [points_of(name, version) for name, (version, _, _) in model.items()]
    ends = found.sets.offsets.tolist()
    same = [np.array_equal(found.sets.points[a:b], x) for a, b, x in zip(ends[:-1], ends[1:], expected, strict=True)]
    return all(same) and found.metadata == [metadata_of(name, *told) for name, (_, *told) in model.items()]


def step(model, rng, next_id, batch, compact=0.06):
    """Return the next change of a model, as something that can be written as JSON."""
    there, dice = sorted(model, key=int), rng.random()
    if dice < compact:
        return ["compact"]
    if dice < compact + 0.06:
        return ["reopen"]
    n = int(rng.integers(1, 7))
    if dice < 0.35 and there:
        return ["remove", sorted(rng.choice(there, min(n, len(there)), replace=False).tolist())]
    if dice < 0.5 and there:
        return ["update", sorted(rng.choice(there, min(n, len(there)), replace=False).tolist()), batch]
    if dice < 0.6 and there:
        return ["describe", sorted(rng.choice(there, min(n, len(there)), replace=False).tolist()), batch]
    return ["add", [str(next_id + i) for i in range(n)], batch]


def changed(model, what):
    """Return the model after a change."""
    new = dict(model)
    if what[0] == "add":
        new |= {name: [0, 0, what[2]] for name in what[1]}
    elif what[0] == "update":
        new |= {name: [model[name][0] + 1, model[name][1] + 1, what[2]] for name in what[1]}
    elif what[0] == "describe":
        new |= {name: [model[name][0], model[name][1] + 1, what[2]] for name in what[1]}
    elif what[0] == "remove":
        for name in what[1]:
            del new[name]
    return new


def apply(index, model, what):
    """Make the same change of an index."""
    if what[0] == "compact":
        index.compact()
    elif what[0] == "remove":
        index.remove(what[1])
    elif what[0] != "reopen":
        new = changed(model, what)
        points = [points_of(name, new[name][0]) for name in what[1]]
        about = [metadata_of(name, *new[name][1:]) for name in what[1]]
        if what[0] == "add":
            index.add(points, what[1], about)
        elif what[0] == "update":
            index.update(what[1], points, about)
        else:
            index.update(what[1], metadata=about)


def work(path, log, model, seed, next_id, batch, compact):
    """Change an index until it is killed. Say what is begun and what is done, each in one write."""
    said = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    rng = np.random.default_rng(seed)
    index = slosh.open(path, n_jobs=1)
    while True:
        what = step(model, rng, next_id, batch, compact)
        os.write(said, (json.dumps(what) + "\n").encode())
        if what[0] == "reopen":
            index.close()
            index = slosh.open(path, n_jobs=1)
        else:
            apply(index, model, what)
        os.write(said, b"done\n")
        model, next_id, batch = changed(model, what), next_id + 10, batch + 1


# -- other things to do ------------------------------------------------------------------------------------------------


def hold(path):
    """Keep an index open for writing until the process is killed."""
    index = slosh.open(path, n_jobs=1)
    print("held", flush=True)
    signal.pause()
    index.close()


def create(path):
    """Create an index, or fail because another was faster; say which."""
    try:
        with slosh.SetIndex.create(path, DIM, **options()) as index:
            index.add([points_of("1", 0)], [str(os.getpid())])
    except (FileExistsError, slosh.IndexLocked):
        os._exit(17)


def read(path, log, wanted):
    """Read while another writes, until `wanted` changes were seen: every batch is whole. Batches have ten sets each."""
    index = slosh.open(path, read_only=True, n_jobs=1)
    query, seen, n, last = np.zeros((3, DIM), np.float32), 0, 0, -1
    while seen < wanted:
        hits = index.search(query, k=100_000, recall=1.0)
        counts = {}
        for about in hits.metadata:
            counts[about["batch"]] = counts.get(about["batch"], 0) + 1
        assert all(count == 10 for count in counts.values()), f"half of a batch: {counts}"
        newest = max(counts)
        assert newest >= last, f"batch {last} was there, now the newest is {newest}"
        seen, last, n = seen + (newest > last), newest, n + 1
        some = hits.metadata[n % len(hits)]["batch"]
        part = index.search(query, k=100, where={"batch": some})
        assert len(part) in (0, 10), f"{len(part)} of batch {some}"
        assert len(index.search(query, k=3, certify=True)) == 3
        assert len(index.ids) % 10 == 0
        if n % 5 == 0:
            report = index.verify()
            assert report.ok, str(report)
    index.close()
    Path(log).write_text(json.dumps({"reads": n, "seen": seen, "last": last}))


def interrupt(path, log):
    """Add until Ctrl-C comes; then say so, and look whether all is well."""
    said = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    index = slosh.open(path, n_jobs=1)
    first, done = len(index), 0
    rng = np.random.default_rng(0)
    try:
        while True:
            index.add([rng.normal(size=(3, DIM)) for _ in range(50)], metadata={"batch": done})
            done += 1
            os.write(said, b"done\n")
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        n = len(index)
        assert (n - first) % 50 == 0, n
        assert n - first >= 50 * done
        report = index.verify()
        assert report.ok, str(report)
        index.add([rng.normal(size=(3, DIM))])
        assert len(index) == n + 1
        index.close()
        os.write(said, b"well\n")


def small_files(path, log, most):
    """Add until files may not become longer, then with more room."""
    index = slosh.open(path, n_jobs=1)
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    done = fill(index)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    check_batches(index, done)
    index.add([np.zeros((2, DIM))], ["after"])
    assert len(index) == 10 * done + 1
    report = index.verify()
    assert report.ok, str(report)
    index.close()
    Path(log).write_text(json.dumps({"done": done}))


def fill(index, most=2000, tries=3):
    """Add tens of sets until that fails a few times; return how many times it did not."""
    done = failed = 0
    rng = np.random.default_rng(0)
    while done < most and failed < tries:
        try:
            index.add([rng.normal(size=(200, DIM)) for _ in range(10)], metadata={"batch": done})
            done += 1
        except OSError:
            failed += 1
            check_batches(index, done)
    assert failed, "the disk never became full"
    return done


def check_batches(index, done):
    assert len(index) == 10 * done, (len(index), done)
    for batch in {0, done // 2, done - 1} if done else ():
        assert len(index.search(np.zeros((2, DIM)), k=20, where={"batch": batch})) == 10
    assert len(index.search(np.zeros((2, DIM)), k=20, where={"batch": done})) == 0


def end_with_parent():
    """Let Linux end this process when the one that started it ends, however that ends."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def main():
    end_with_parent()
    sys.path.append(str(Path(__file__).parents[2]))  # for the builders
    for line in sys.stdin:
        name, given = json.loads(line)
        number = os.fork()
        if not number:
            code = 1
            try:
                end_with_parent()
                module, _, function = name.rpartition(":")
                (vars(import_module(module)) if module else globals())[function](*given)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        print(number, flush=True)
        _, status = os.waitpid(number, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    print("ready", flush=True)
    main()
