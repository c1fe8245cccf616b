"""Work that kills its own process in the middle, once: for tests of what Ray makes of it."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from unittest import mock

import slosh.batch.embedding
import slosh.batch.shards
import slosh.index
from slosh.ray.running import RayRunner


class DiesOnce:
    """Calls work(task); the first process that does so is killed (SIGKILL) where `place` says.

    place : "embed", while vectors are written; "add", after some sets of a shard are stored; "shard", when a shard is
    complete and nobody knows of it yet; "always", at once and every time.
    """

    def __init__(self, work, mark, place):
        self.work, self.mark, self.place = work, Path(mark), place

    def __call__(self, task):
        if self.place == "always":
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            os.close(os.open(self.mark, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return self.work(task)
        with self.fatal():
            self.work(task)
        raise AssertionError("the process should have been killed")

    def fatal(self):
        def die(*given, **options):
            os.kill(os.getpid(), signal.SIGKILL)

        def add_and_die(index, sets, *given, **options):
            real(index, iter([next(sets)]), *given, **options)
            die()

        real = slosh.index.SetIndex.add
        return {
            "embed": lambda: mock.patch.object(slosh.batch.embedding, "_embedded", self.some_and_die(die)),
            "add": lambda: mock.patch.object(slosh.index.SetIndex, "add", add_and_die),
            "shard": lambda: mock.patch.object(slosh.batch.shards, "id_hashes", die),
        }[self.place]()

    @staticmethod
    def some_and_die(die):
        real = vars(slosh.batch.embedding)["_embedded"]

        def some(*given):
            yield next(real(*given))
            die()

        return some


class DyingRunner(RayRunner):
    """Ray, one of whose workers dies."""

    def __init__(self, mark, place):
        super().__init__()
        self.mark, self.place = mark, place

    def __call__(self, work, tasks):
        return super().__call__(DiesOnce(work, self.mark, self.place), tasks)
