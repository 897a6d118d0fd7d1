"""Compute the points of the map: groups of similar states, however many signatures a library has.

With many signatures, each is a point. With few (conversations and logs lack the object lists that distinguish
situations), the states of each signature are clustered by their vectors, so that 100,000 states are not one point.
States without a vector are embedded for the map only, newest first, within a time limit.
"""

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

import faiss
import numpy as np

from hardwon.memory import ExperienceLibrary
from hardwon.memory.storage.database import Store

POINTS = 150
"""Approximate number of points if there are fewer than `ENOUGH` signatures."""
ENOUGH = 40
STATES = 1600
"""Number of states to sample over all situations."""
EACH = 4
"""Number of states to sample per situation, if each situation is a point."""
EMBEDDING_S = 4.0
"""Time limit, in seconds, to compute missing vectors."""
BATCH = 64

Row = Mapping[str, Any]


def points(library: ExperienceLibrary, rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the points of the map.

    Args:
        library: The library.
        rows: Situations from `ExperienceLibrary.clusters`.

    Returns:
        For every point its signature, counts, mean return and example, and its coordinates `x` and `y`.
    """
    groups: list[dict[str, Any]] = []
    store = Store(library.path, read_only=True)
    try:
        ((number,),) = store.rows("SELECT id FROM namespaces WHERE name = ?", (library.namespace,))
        states = sum(row["states"] for row in rows) or 1
        samples = {
            row["signature"]: _sample_states(store, number, row, _count_samples(row, rows, states)) for row in rows
        }
        vectors = _load_vectors(library, store, samples)
        for row in rows:
            known = [ref for ref in samples[row["signature"]] if ref in vectors]
            n = 1 if len(rows) >= ENOUGH else max(1, round(POINTS * row["states"] / states))
            groups += _build_groups(store, row, known, np.array([vectors[ref] for ref in known]), n)
    finally:
        store.close()
    for group, (x, y) in zip(groups, project([group.pop("centre") for group in groups]), strict=True):
        group["x"], group["y"] = x, y
    return groups


def _count_samples(row: Row, rows: Sequence[Row], states: int) -> int:
    if len(rows) >= ENOUGH:
        return EACH
    return max(EACH, round(STATES * int(row["states"]) / states))


def _sample_states(store: Store, number: int, row: Row, wanted: int) -> list[int]:
    """Return ids of states of a situation, evenly spaced over time, newest first."""
    found = store.rows(
        "SELECT id FROM states WHERE namespace = ? AND signature = ? ORDER BY id DESC", (number, row["signature"])
    )
    chosen = np.unique(np.linspace(0, len(found) - 1, min(wanted, len(found))).round().astype(int))
    return [found[at][0] for at in chosen]


def _load_vectors(library: ExperienceLibrary, store: Store, samples: Mapping[str, Sequence[int]]) -> dict[int, Any]:
    """Return the vectors of states: stored ones, and new ones computed in turns over all situations."""
    refs = [ref for sample in samples.values() for ref in sample]
    # One JSON parameter, because SQLite limits the number of parameters of a query.
    wanted = json.dumps(refs)
    of_these = "(SELECT value FROM json_each(?))"
    stored = store.rows(f"SELECT ref, vector FROM vectors WHERE kind = 'states' AND ref IN {of_these}", (wanted,))
    vectors = {ref: np.frombuffer(vector, dtype=np.float32) for ref, vector in stored}
    texts = store.rows(f"SELECT id, observation || char(10) || feedback FROM states WHERE id IN {of_these}", (wanted,))
    known = dict(texts)
    # In turns, so that every situation has some vectors when the time is up.
    missing = [
        ref
        for turn in range(max(map(len, samples.values()), default=0))
        for sample in samples.values()
        if turn < len(sample) and (ref := sample[turn]) not in vectors
    ]
    until = time.monotonic() + EMBEDDING_S
    for at in range(0, len(missing), BATCH):
        batch = missing[at : at + BATCH]
        vectors.update(zip(batch, library.embedder.embed([known[ref] for ref in batch]), strict=True))
        if time.monotonic() > until:
            break
    # Vectors of an earlier embedder can have another size; keep the most common one.
    sizes = [len(vector) for vector in vectors.values()]
    size = max(set(sizes), key=sizes.count, default=0)
    return {ref: vector for ref, vector in vectors.items() if len(vector) == size}


def _build_groups(store: Store, row: Row, refs: Sequence[int], vectors: Any, n: int) -> list[dict[str, Any]]:
    """Return up to n groups of the states of one situation, largest first."""
    if not refs:
        return []
    # No more clusters than distinct vectors, because the rest would be copies.
    label = _cluster(vectors, min(n, len(np.unique(vectors, axis=0))))
    steps = store.rows(
        "SELECT pre, count(*), sum(return_to_go) FROM steps WHERE pre IN (SELECT value FROM json_each(?)) GROUP BY pre",
        (json.dumps(list(refs)),),
    )
    taken = {pre: (count, total) for pre, count, total in steps}
    found = []
    for number in np.unique(label):
        inside = np.flatnonzero(label == number)
        centre = vectors[inside].mean(axis=0)
        typical = refs[int(inside[((vectors[inside] - centre) ** 2).sum(axis=1).argmin()])]
        ((example,),) = store.rows("SELECT observation FROM states WHERE id = ?", (typical,))
        counts = [taken[ref] for at in inside if (ref := refs[int(at)]) in taken]
        n_steps = sum(count for count, _ in counts)
        share = len(inside) / len(refs)
        alone = share == 1
        found.append(
            {
                "signature": row["signature"],
                "states": round(row["states"] * share),
                "steps": row["steps"] if alone else round(row["steps"] * share),
                "episodes": row["episodes"] if alone else None,
                "mean_return": row["mean_return"]
                if alone
                else sum(t for _, t in counts) / n_steps
                if n_steps
                else None,
                "example": row["example"] if alone else example,
                # The mean of opposite vectors can be zero.
                "centre": centre / max(float(np.linalg.norm(centre)), 1e-12),
            }
        )
    return sorted(found, key=lambda group: -group["states"])


def _cluster(vectors: Any, n: int) -> Any:
    """Return the group number of every vector, by k-means with a fixed seed."""
    if n < 2:
        return np.zeros(len(vectors), dtype=int)
    # The seed keeps the map stable; min_points_per_centroid=1 silences a warning about small clusters.
    means = faiss.Kmeans(vectors.shape[1], n, niter=15, seed=1, min_points_per_centroid=1, verbose=False)
    # FAISS reads the memory directly: it must be contiguous float32.
    content = np.ascontiguousarray(vectors, dtype=np.float32)
    means.train(content)
    return means.index.search(content, 1)[1][:, 0]


def project(vectors: Sequence[Any]) -> list[tuple[float, float]]:
    """Return 2D coordinates of vectors by PCA; equal vectors always give equal points.

    Outliers are moved to the edge, because they would otherwise compress all other points into one spot.
    """
    if not vectors:
        return []
    centred = np.stack(vectors) - np.mean(vectors, axis=0)
    _, _, directions = np.linalg.svd(centred, full_matrices=False)
    axes = np.zeros((2, centred.shape[1]))
    axes[: min(2, len(directions))] = directions[:2]
    # SVD leaves the sign of an axis undefined; fix it, so that the map does not flip between requests.
    signs = np.sign(axes[np.arange(2), np.abs(axes).argmax(axis=1)])
    places = centred @ (axes * np.where(signs == 0, 1, signs)[:, None]).T
    if len(places) >= ENOUGH:
        low, high = np.percentile(places, (3, 97), axis=0)
        reach = (high - low) / 2
        places = np.where(reach > 0, np.clip(places, low - reach, high + reach), places)
    return [(round(float(x), 4), round(float(y), 4)) for x, y in places]
