import threading

import numpy as np
import pytest

from tacit.memory.index import VectorIndex


def vectors(count, dim=16, seed=0):
    """Random unit vectors."""
    drawn = np.random.default_rng(seed).normal(size=(count, dim)).astype(np.float32)
    return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)


@pytest.fixture
def filled():
    """An index of 200 vectors under ids 1000 and up, and the vectors."""
    index, drawn = VectorIndex(16), vectors(200)
    index.add(range(1000, 1200), drawn)
    return index, drawn


def brute(drawn, query, k):
    """What exact search gives: ids from 1000, best first."""
    return [1000 + int(at) for at in np.argsort(-(drawn @ query), kind="stable")[:k]]


@pytest.mark.parametrize("query", vectors(20, seed=1))
def test_the_index_finds_what_brute_force_finds(filled, query):
    """Exact search: the same ids in the same order, with the same cosines."""
    index, drawn = filled
    found = index.search(query, 10)
    assert [ref for ref, _ in found] == brute(drawn, query, 10)
    assert [score for _, score in found] == pytest.approx(
        [float(drawn[ref - 1000] @ query) for ref, _ in found], abs=1e-5
    )


def test_an_empty_index_finds_nothing():
    """No vector, no hit, no padding."""
    assert VectorIndex(16).search(vectors(1)[0], 5) == []


def test_more_hits_than_vectors_are_not_made_up():
    """FAISS pads with -1; we do not."""
    index = VectorIndex(16)
    index.add([7, 8], vectors(2))
    assert sorted(ref for ref, _ in index.search(vectors(1)[0], 50)) == [7, 8]


def test_what_was_removed_is_not_found(filled):
    """Even when all of the nearest were removed, k others are found."""
    index, drawn = filled
    gone = brute(drawn, drawn[0], 50)
    for ref in gone:
        index.remove(ref)
    assert [ref for ref, _ in index.search(drawn[0], 10)] == brute(drawn, drawn[0], 60)[50:]
    assert len(index) == 150


def test_removing_everything_leaves_nothing(filled):
    """And removing what is not there is fine."""
    index, drawn = filled
    for ref in range(900, 1300):
        index.remove(ref)
    assert index.search(drawn[0], 3) == []


def test_an_id_moves_to_its_new_vector(filled):
    """Added again it is found where it is now, once."""
    index, drawn = filled
    index.add([1000], -drawn[:1])
    assert index.search(-drawn[0], 1)[0][0] == 1000
    assert 1000 not in [ref for ref, _ in index.search(drawn[0], 150)]
    assert len(index) == 200


def test_cosine_of_known_and_unknown_ids(filled):
    """The cosine is exact; an id that is not there has none."""
    index, drawn = filled
    assert index.cosine(drawn[3], [1003, 9]) == pytest.approx([1.0, 0.0], abs=1e-5)


def test_threads_may_add_while_others_search():
    """FAISS alone crashes at this."""
    index, drawn = VectorIndex(16), vectors(2000)
    errors = []

    def add(part):
        for at in range(part, 2000, 2):
            index.add([at], drawn[at : at + 1])

    def search():
        try:
            for at in range(300):
                found = index.search(drawn[at], 5)
                assert [score for _, score in found] == sorted((score for _, score in found), reverse=True)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=add, args=(part,)) for part in (0, 1)]
    threads += [threading.Thread(target=search) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(index) == 2000
    assert [ref for ref, _ in index.search(drawn[1234], 1)] == [1234]
