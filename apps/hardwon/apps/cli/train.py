"""Re-export the command of `python -m hardwon.trainers` as `hardwon train`."""

from hardwon.trainers.__main__ import train

__all__ = ["train"]
