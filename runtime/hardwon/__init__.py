"""hardwon: an agent runtime that consults a durable library of its own experience at every step.

The portions (`hardwon.memory`, `hardwon.runtime`, `hardwon.trainers`, `hardwon.apps`) live in four
folders, each of them on `sys.path` in an editable install. This file is the same in all four: the
first one that is found collects the others. A built wheel has it once.
"""

from pkgutil import extend_path

# In place: the import system's spec shares this list, and import-linter reads the spec.
__path__[:] = extend_path(__path__, __name__)


def __getattr__(name: str) -> str:
    if name == "__version__":
        from importlib.metadata import version  # takes 20 ms, which few imports need

        return version("hardwon")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
