"""Composers: which episodes a group consists of, in rounds; importing this package registers all of them."""

from .base import (
    COMPOSERS as COMPOSERS,
    Composer as Composer,
    ComposerParts as ComposerParts,
    EndedEpisode as EndedEpisode,
    open_composer as open_composer,
)

from . import branching as branching, populations as populations, replay as replay, retries as retries, starts as starts  # isort: skip
