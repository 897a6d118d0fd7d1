"""`hardwon train`: the same command as `python -m hardwon.trainers`, whose wing it lives in."""

from hardwon.trainers.__main__ import train

__all__ = ["train"]
