from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from hardwon.memory.retrieval.tuning import TUNING
from hardwon.memory.retrieval.vector_index import TrainedIndex, VectorIndex


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


def many(spread=0.0, alike=1, largest=0.0, dim=32):
    """Twice FEW unit vectors in groups of some that differ by a spread; the last have one large component."""
    rng = np.random.default_rng(1)
    middles = np.repeat(rng.standard_normal((2 * TUNING.scanned_vectors // alike, dim)), alike, axis=0)
    drawn = middles + rng.standard_normal(middles.shape) * spread
    drawn[-20:, 3] += largest
    return (drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).astype(np.float32)


@pytest.mark.parametrize(
    "drawn",
    [many(), many(spread=1e-3, alike=2), many(spread=0.08, alike=256), many(largest=50.0)],
    ids=["as they come", "near doubles", "hundreds nearly alike", "later ones with larger components"],
)
def test_many_vectors_are_found_as_exactly_as_few(drawn):
    index = VectorIndex(32)
    for start in range(0, len(drawn), 500):
        index.add(range(start, min(start + 500, len(drawn))), drawn[start : start + 500])
    for vector in (*drawn[:50], *drawn[-5:]):
        exact = drawn @ vector
        found = index.search(vector, 5)
        assert sorted(ref for ref, _ in found) == sorted(np.argsort(-exact)[:5].tolist())
        assert [cosine for _, cosine in found] == pytest.approx(sorted(exact, reverse=True)[:5], abs=1e-6)


def test_among_many_vectors_what_is_no_number_is_not_found():
    index = VectorIndex(16)
    index.add(range(2 * TUNING.scanned_vectors), np.full((2 * TUNING.scanned_vectors, 16), np.nan, dtype=np.float32))
    assert index.search(vectors(1)[0], 5) == []


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

    def add(part):
        for at in range(part, 2000, 2):
            index.add([at], drawn[at : at + 1])

    def search():
        for at in range(300):
            found = index.search(drawn[at], 5)
            assert [score for _, score in found] == sorted((score for _, score in found), reverse=True)

    with ThreadPoolExecutor() as pool:
        for work in [pool.submit(add, 0), pool.submit(add, 1), pool.submit(search), pool.submit(search)]:
            work.result()
    assert len(index) == 2000
    assert [ref for ref, _ in index.search(drawn[1234], 1)] == [1234]


@pytest.fixture
def trained():
    """A trained index of 3,000 vectors near 40 centres under ids 1000 and up, their truth, and the vectors."""
    rng = np.random.default_rng(2)
    drawn = vectors(40)[rng.integers(40, size=3000)] + 0.15 * rng.normal(size=(3000, 16)).astype(np.float32)
    drawn /= np.linalg.norm(drawn, axis=1, keepdims=True)
    truth = dict(zip(range(1000, 4000), drawn, strict=True))

    def exact(refs):
        known = [ref for ref in refs if ref in truth]
        return known, np.array([truth[ref] for ref in known], dtype=np.float32).reshape(-1, 16)

    index = TrainedIndex(16, exact, drawn[:: len(drawn) // TrainedIndex.sample_size(len(drawn))])
    index.add(range(1000, 4000), drawn)
    index.choose_probe(drawn)
    return index, drawn, truth


def agreement(index, drawn, queries):
    """The share of hits at least as near as the exact fifth."""
    found = 0
    for query in queries:
        fifth = float(np.sort(drawn @ query)[-5])
        found += sum(score >= fifth - 1e-5 for _, score in index.search(query, 5))
    return found / (5 * len(queries))


def test_a_trained_index_agrees_with_exact_search(trained):
    """For vectors near those that it holds, at least 97 of 100 of the nearest five are found."""
    index, drawn, _ = trained
    near = drawn[:100] + 0.1 * vectors(100, seed=3)
    assert agreement(index, drawn, near / np.linalg.norm(near, axis=1, keepdims=True)) >= 0.97


def test_a_trained_index_of_random_vectors_agrees_too():
    """Where nothing is near anything, it looks at as many lists as it takes."""
    drawn = vectors(3000)
    index = TrainedIndex(16, lambda refs: (list(refs), drawn[list(refs)]), drawn)
    index.add(range(3000), drawn)
    index.choose_probe(drawn)
    assert agreement(index, drawn, vectors(50, seed=4)) >= 0.97


def test_a_trained_index_gives_exact_cosines(trained):
    """Codes propose, the truth's vectors rank."""
    index, _, truth = trained
    query = vectors(1, seed=5)[0]
    found = index.search(query, 10)
    assert [score for _, score in found] == pytest.approx([float(truth[ref] @ query) for ref, _ in found], abs=1e-6)
    assert found == sorted(found, key=lambda pair: (-pair[1], pair[0]))
    assert index.cosine(query, [1003, 9]) == pytest.approx([float(truth[1003] @ query), 0.0], abs=1e-6)


def test_a_trained_index_never_returns_what_was_removed(trained):
    """However many of the nearest were."""
    index, drawn, _ = trained
    gone = [ref for ref, _ in index.search(drawn[0], 100)]
    for ref in gone:
        index.remove(ref)
    assert not {ref for ref, _ in index.search(drawn[0], 100)} & set(gone)
    assert len(index) == 2900
    assert index.ids() == set(range(1000, 4000)) - set(gone)


def test_a_trained_index_never_returns_what_the_truth_lost(trained):
    """An id without a vector is no hit."""
    index, drawn, truth = trained
    del truth[1000]
    assert 1000 not in [ref for ref, _ in index.search(drawn[0], 20)]


def test_a_removed_id_may_come_back(trained):
    """Under a new vector, and is found by that."""
    index, drawn, truth = trained
    index.remove(1000)
    truth[1000] = drawn[7]
    index.add([1000], drawn[7:8])
    assert 1000 in [ref for ref, _ in index.search(drawn[7], 2)]
    assert len(index) == 3000


def test_what_is_added_after_training_is_found(trained):
    """And when there is twice as much as at training, the index says that it is outgrown."""
    index, _, truth = trained
    later = vectors(3001, seed=6)
    truth.update(zip(range(9000, 12001), later, strict=True))
    index.add(range(9000, 9001), later[:1])
    assert index.search(later[0], 1)[0][0] == 9000
    assert not index.outgrown
    index.add(range(9001, 12001), later[1:])
    assert index.outgrown


def test_a_trained_index_is_restored_as_it_was(trained):
    """From its arrays: the same hits, the same probe."""
    index, drawn, _ = trained
    again = TrainedIndex.restored(index.arrays(), index._exact, index.trained)
    assert [again.search(query, 5) for query in drawn[:20]] == [index.search(query, 5) for query in drawn[:20]]
    assert (len(again), again.dim, again.trained) == (3000, 16, 3000)


def test_arrays_of_nothing_are_refused(trained):
    """A file that is whole may still be none of FAISS."""
    with pytest.raises(RuntimeError):
        TrainedIndex.restored({"faiss": np.zeros(100, np.uint8)}, trained[0]._exact, 1)


def test_only_as_many_lists_are_probed_as_are_needed():
    """In well separated groups a few lists hold the neighbors; probing all of them would be exact search."""
    rng = np.random.default_rng(0)
    groups = rng.normal(size=(40, 16)).astype(np.float32)
    drawn = np.repeat(groups, 300, axis=0) + 0.01 * rng.normal(size=(12_000, 16)).astype(np.float32)
    drawn /= np.linalg.norm(drawn, axis=1, keepdims=True)
    index = TrainedIndex(16, lambda refs: (list(refs), drawn[list(refs)]), drawn)
    index.add(range(len(drawn)), drawn)
    index.choose_probe(drawn)
    assert 8 <= index._faiss.nprobe < index._faiss.nlist
