"""Large changes are embedded part by part, and stored as one."""

from __future__ import annotations

import pytest

from builders import cloud_list, contents, make_index, plain_answer
from slosh.embed import SlicedWasserstein
from slosh.index import changes


@pytest.fixture
def small_chunks(monkeypatch):
    """Let 7 sets be embedded together; return how many there were each time."""
    sizes, real = [], SlicedWasserstein.index_vectors

    def counted(embedding, sets, **options):
        sizes.append(len(sets))
        if len(sizes) > 4:
            raise MemoryError
        return real(embedding, sets, **options)

    monkeypatch.setattr(changes, "CHUNK_NUMBERS", 7 * make_index().embedding.index_length)
    monkeypatch.setattr(SlicedWasserstein, "index_vectors", counted)
    return sizes


def test_parts_make_the_same_index(small_chunks, monkeypatch):
    one, other, sets = make_index(), make_index(), cloud_list(20)
    about = [{"n": i} for i in range(20)]
    one.add(sets, metadata=about)
    assert small_chunks == [7, 7, 6]
    monkeypatch.undo()
    other.add(sets, metadata=about)
    assert contents(one) == contents(other)
    assert plain_answer(one.search(sets[:3], k=20)) == plain_answer(other.search(sets[:3], k=20))
    assert one.verify().ok


@pytest.mark.parametrize("change", ["add", "update"])
def test_a_part_that_fails_leaves_nothing_of_the_others(tmp_path, small_chunks, change):
    for place in (None, tmp_path / "a.slosh"):
        with make_index(place) as index:
            index.add(cloud_list(14), metadata={"x": 1})
            before = contents(index)
            names = [f"new{i}" if change == "add" else str(i) for i in range(21)]
            with pytest.raises(MemoryError):
                index.add(cloud_list(21, seed=1), names, update=change == "update")
            assert contents(index) == before
            small_chunks.clear()
            assert index.add(cloud_list(1)) == ["14"]
            small_chunks.clear()
