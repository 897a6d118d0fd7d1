"""hardwon: an agent runtime that consults a durable library of its own experience at every step.

The packages `hardwon.memory`, `hardwon.runtime`, `hardwon.trainers` and `hardwon.apps` live in four folders, each of
them on `sys.path` in an editable install. This file is the same in all four: the first one that Python finds adds
the others. A wheel contains it once.
"""

# In place, because import-linter reads the list of the module's spec; in this form, because griffe looks for it.
__path__[:] = __path__ = __import__("pkgutil").extend_path(__path__, __name__)


def __getattr__(name: str) -> str:
    if name == "__version__":
        from importlib.metadata import version  # takes 20 ms, which few imports need

        return version("hardwon")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
