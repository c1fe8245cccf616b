"""A step of training that is repeated: on a GPU as a CUDA graph, since launching its many small kernels takes longer
than running them; elsewhere as it is. Sets of a batch come in, by number, and their loss comes out.

A graph is recorded for each shape of a batch. What it computes is what the step computes.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from .sampled_inputs import Size

Step = Callable[[Tensor, Tensor, Size], Tensor]
"""Takes the numbers of sets, (n,), their classes, (n,), and the size of the batch; trains; returns the loss."""

STEPS_BEFORE = 2
"""Steps of a shape before it is recorded: libraries choose and load what they need in the first ones."""
MOST_GRAPHS = 64
"""Shapes that are recorded; batches of others are worked on kernel by kernel."""


class _Graph(NamedTuple):
    graph: torch.cuda.CUDAGraph
    rows: Tensor
    classes: Tensor
    loss: Tensor


class RepeatedStep:
    """Calls a step, or replays it. `n_graphs` is how many were recorded.

    The step must not look at what it computes: nothing may wait for the device.
    """

    def __init__(self, step: Step, device: torch.device, can_record: bool) -> None:
        self._step, self._can_record = step, can_record and device.type == "cuda"
        self._graphs: dict[tuple[int, Size], _Graph] = {}
        self._counts: dict[tuple[int, Size], int] = {}
        self._pool = torch.cuda.graph_pool_handle() if self._can_record else None

    @property
    def n_graphs(self) -> int:
        return len(self._graphs)

    def __call__(self, rows: Tensor, classes: Tensor, size: Size) -> Tensor:
        """Make a step on these sets, which are tensors on the device."""
        if not self._can_record:
            return self._step(rows, classes, size)
        shape = (len(rows), size)
        if shape not in self._graphs:
            self._counts[shape] = self._counts.get(shape, 0) + 1
            if self._counts[shape] <= STEPS_BEFORE or len(self._graphs) >= MOST_GRAPHS:
                return self._step(rows, classes, size)
            try:
                self._graphs[shape] = self._record(rows, classes, size)
            except RuntimeError as error:  # of a driver or a version of torch that cannot
                self._can_record = False
                problem = f"a step cannot be recorded as a CUDA graph, so the fit takes longer: {error!s:.300}"
                warnings.warn(problem, RuntimeWarning, stacklevel=2)
                return self._step(rows, classes, size)
        found = self._graphs[shape]
        found.rows.copy_(rows)
        found.classes.copy_(classes)
        found.graph.replay()
        return found.loss

    def _record(self, rows: Tensor, classes: Tensor, size: Size) -> _Graph:
        graph, rows, classes = torch.cuda.CUDAGraph(), rows.clone(), classes.clone()
        with torch.cuda.graph(
            graph,
            pool=self._pool,
            stream=torch.cuda.current_stream(),
            capture_error_mode="thread_local",  # other threads may search on the GPU meanwhile
        ):
            loss = self._step(rows, classes, size)
        return _Graph(graph, rows, classes, loss)


@contextmanager
def own_stream(device: torch.device) -> Iterator[None]:
    """Work on a stream of one's own, as graphs are recorded on one; on the CPU this is nothing."""
    if device.type != "cuda":
        yield
        return
    with torch.cuda.device(device):
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        outer = torch.cuda.current_stream()
        stream.wait_stream(outer)
        try:
            with torch.cuda.stream(stream):
                yield
        finally:
            outer.wait_stream(stream)
