"""Compute the points of the map: groups of similar states, however many signatures a library has.

With many signatures, each is a point. With few (conversations and logs lack the object lists that distinguish
situations), the states of each signature are clustered by their vectors, so that 100,000 states are not one point.
States without a vector are embedded for the map only, newest first, within a time limit.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import faiss
import numpy as np

from hardwon.memory import ExperienceLibrary
from hardwon.memory.upkeep.figures import StateFigures

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
    """Return the points of the map."""
    groups: list[dict[str, Any]] = []
    states = sum(row["states"] for row in rows) or 1
    samples = {
        row["signature"]: library.sample_states(row["signature"], _count_samples(row, rows, states)) for row in rows
    }
    figures = {state.id: state for state in library.state_figures([ref for refs in samples.values() for ref in refs])}
    vectors = _load_vectors(library, figures, samples)
    for row in rows:
        sample = [figures[ref] for ref in samples[row["signature"]] if ref in vectors]
        n = 1 if len(rows) >= ENOUGH else max(1, round(POINTS * row["states"] / states))
        groups += _build_groups(row, sample, np.array([vectors[state.id] for state in sample]), n)
    for group, (x, y) in zip(groups, project([group.pop("centre") for group in groups]), strict=True):
        group["x"], group["y"] = x, y
    return groups


def _count_samples(row: Row, rows: Sequence[Row], states: int) -> int:
    if len(rows) >= ENOUGH:
        return EACH
    return max(EACH, round(STATES * int(row["states"]) / states))


def _load_vectors(
    library: ExperienceLibrary, figures: Mapping[int, StateFigures], samples: Mapping[str, Sequence[int]]
) -> dict[int, Any]:
    """Return the vectors of states: stored ones, and new ones computed in turns over all situations."""
    vectors = {ref: state.vector for ref, state in figures.items() if state.vector is not None}
    # In turns, so that every situation has some vectors when the time is up.
    missing = [
        ref
        for turn in range(max(map(len, samples.values()), default=0))
        for sample in samples.values()
        if turn < len(sample) and (ref := sample[turn]) in figures and ref not in vectors
    ]
    until = time.monotonic() + EMBEDDING_S
    for at in range(0, len(missing), BATCH):
        batch = missing[at : at + BATCH]
        vectors.update(zip(batch, library.embedder.embed([figures[ref].text for ref in batch]), strict=True))
        if time.monotonic() > until:
            break
    # Vectors of an earlier embedder can have another size; keep the most common one.
    sizes = [len(vector) for vector in vectors.values()]
    size = max(set(sizes), key=sizes.count, default=0)
    return {ref: vector for ref, vector in vectors.items() if len(vector) == size}


def _build_groups(row: Row, sample: Sequence[StateFigures], vectors: Any, n: int) -> list[dict[str, Any]]:
    """Return up to n groups of the states of one situation, largest first."""
    if not sample:
        return []
    # No more clusters than distinct vectors, because the rest would be copies.
    label = _cluster(vectors, min(n, len(np.unique(vectors, axis=0))))
    groups = []
    for number in np.unique(label):
        inside = np.flatnonzero(label == number)
        centre = vectors[inside].mean(axis=0)
        typical = sample[int(inside[((vectors[inside] - centre) ** 2).sum(axis=1).argmin()])]
        members = [sample[int(at)] for at in inside]
        n_steps = sum(state.steps for state in members)
        share = len(inside) / len(sample)
        alone = share == 1
        groups.append(
            {
                "signature": row["signature"],
                "states": round(row["states"] * share),
                "steps": row["steps"] if alone else round(row["steps"] * share),
                "episodes": row["episodes"] if alone else None,
                "mean_return": row["mean_return"]
                if alone
                else sum(state.total_return for state in members) / n_steps
                if n_steps
                else None,
                "example": row["example"] if alone else typical.observation,
                # The mean of opposite vectors can be zero.
                "centre": centre / max(float(np.linalg.norm(centre)), 1e-12),
            }
        )
    return sorted(groups, key=lambda group: -group["states"])


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
    """Return 2D coordinates of vectors; equal vectors always give equal points.

    With scikit-learn (the extra `map`), many vectors are laid out by t-SNE, which keeps neighbors close and groups
    apart; otherwise by PCA. Both are then spread, because few outliers would compress all other points into one spot.
    """
    if not vectors:
        return []
    distinct, which = np.unique(np.stack(vectors), axis=0, return_inverse=True)
    # The mean over all vectors: a frequent one is in the middle.
    places = _project_on_axes(distinct, np.mean(vectors, axis=0))
    if len(distinct) >= ENOUGH:
        places = _spread(_arrange_neighbors(distinct, places))
    return [(round(float(x), 4), round(float(y), 4)) for x, y in places[which.reshape(-1)]]


def _project_on_axes(vectors: Any, middle: Any) -> Any:
    """Return the coordinates of vectors on their first two principal components."""
    centred = vectors - middle
    _, _, directions = np.linalg.svd(centred, full_matrices=False)
    axes = np.zeros((2, centred.shape[1]))
    axes[: min(2, len(directions))] = directions[:2]
    # SVD leaves the sign of an axis undefined; fix it, so that the map does not flip between requests.
    signs = np.sign(axes[np.arange(2), np.abs(axes).argmax(axis=1)])
    return centred @ (axes * np.where(signs == 0, 1, signs)[:, None]).T


def _arrange_neighbors(vectors: Any, places: Any) -> Any:
    """Return a t-SNE layout that starts from the given places; without scikit-learn, those places."""
    try:
        from sklearn.manifold import TSNE
    except ImportError:
        return places
    scale = max(float(places.std(axis=0).max()), 1e-12)
    layout = TSNE(init=1e-4 * places / scale, perplexity=min(30.0, len(vectors) / 4), random_state=0, n_jobs=1)
    return layout.fit_transform(vectors)


def _spread(places: Any) -> Any:
    """Return the places halfway between where they are and evenly spaced ones in the same order, on each axis."""
    low, high = np.percentile(places, (3, 97), axis=0)
    reach = (high - low) / 2
    inside = np.where(reach > 0, np.clip(places, low - reach, high + reach), places)
    width = np.maximum(np.ptp(inside, axis=0), 1e-12)
    ranks = np.stack([np.unique(axis, return_inverse=True)[1].reshape(-1) for axis in places.T], axis=1)
    return (inside - inside.min(axis=0)) / width + ranks / np.maximum(ranks.max(axis=0), 1)
