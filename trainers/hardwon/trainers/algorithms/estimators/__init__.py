"""Advantage estimators of published methods; importing this package registers all of them in `ESTIMATORS`."""

from hardwon.trainers.algorithms.advantages import ESTIMATORS as ESTIMATORS

from . import (
    batch as batch,
    certainty as certainty,
    gains as gains,
    judged as judged,
    pairs as pairs,
    preferences as preferences,
    reasoning as reasoning,
    retries as retries,
    segments as segments,
    trees as trees,
)
