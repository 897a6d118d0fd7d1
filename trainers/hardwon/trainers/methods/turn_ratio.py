"""ROME (IPA), ratio and mask of a chunk (arXiv:2512.24873), which is settings of a run."""

from hardwon.trainers.algorithms.catalog import PARTS

PARTS.add_settings(
    "turn-ratio",
    "ROME (IPA), ratio and mask of a chunk",
    "arXiv:2512.24873",
    evidence="N",
    reading="a chunk is left out if the geometric mean of the probabilities, of the trainer over those of sampling, "
    "exceeds `max_mismatch`; `prefixed` with `falling` starts from expert prefixes",
    unseen="the bound of the mismatch: 2",
    settings={
        "roles.policy.loss.kind": "gspo",
        "roles.policy.loss.ratio": "turn",
        "roles.policy.loss.old": "trainer",
        "roles.policy.loss.max_mismatch": 2.0,
    },
)
