"""The published methods of training, one file for each; importing this package registers all of them in `PARTS`.

Nothing imports a method: `hardwon.trainers.algorithms.catalog` loads it by the name that the settings give.
"""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
