"""The compact format under its earlier name."""

from hardwon.trainers.prompting.compact import CompactFormat as Transcript, compact

__all__ = ["Transcript", "compact"]
