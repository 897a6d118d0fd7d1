"""Composers: which episodes a group consists of, in rounds."""

from .base import (
    Composer as Composer,
    ComposerParts as ComposerParts,
    EndedEpisode as EndedEpisode,
    open_composer as open_composer,
)
