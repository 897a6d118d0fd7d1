"""`tacit train`: the same command as `python -m tacit.trainers`, whose wing it lives in."""

from tacit.trainers.__main__ import train

__all__ = ["train"]
