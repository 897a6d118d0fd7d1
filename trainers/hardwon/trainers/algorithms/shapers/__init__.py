"""Shapers of published methods; importing this package registers all of them in `SHAPERS`."""

from . import outcomes as outcomes, rewards as rewards
from .base import SHAPERS as SHAPERS, shape as shape
