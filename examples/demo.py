"""Show in two minutes what hardwon does: an agent stops repeating a mistake, and another one learns a game.

    make demo                              or: python -m examples.demo runs/demo

Needs neither a key nor a language model. After Ctrl-C, the same command continues; once it is done, it shows the
results again.
"""

import json
import os
import subprocess
import sys
from itertools import accumulate
from pathlib import Path

HARDWON = Path(sys.executable).with_name("hardwon")
GAME = """\

2. AN AGENT LEARNS A GAME

In Pecking Order, an instruction book names the next action, and one wrong action loses the game. Three agents begin
with random actions. Each learns from 100 games of its own, and is tested on 50 games that it never saw.
"""
ARMS = {
    "random": "random actions",
    "empty": "the same agent without a library",
    "task": "with its library, asked once per game",
    "step": "with its library, asked before every action",
}
NEXT = """\

WHAT NEXT (first: . {bin}/activate)

  the rule of the first agent, and the calls behind it:   hardwon memory guardrails {out}/agent.db
  what the second agent learned:                          hardwon memory ls {out}/library.db
  the same in a browser:                                  hardwon serve {out}/library.db
  pictures of both:                                       {out}/agent.png, {out}/curve.png
  add it to your own agent, in one line:                  docs/tutorial.md
  start the demo anew:                                    rm -r {out}; make demo"""


def draw_failures(failed: tuple[list[int], list[int]], path: Path) -> None:
    """Draw the failed calls so far, over the requests, without a library and with one."""
    import matplotlib

    matplotlib.use("Agg")  # no display is needed, and no window opens
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7.2, 4.0), dpi=150)
    for counts, name, color in zip(failed, ("without hardwon", "with hardwon"), ("#c98a2b", "#0b6e6e"), strict=True):
        so_far = [0, *accumulate(counts)]
        axes.plot(range(len(so_far)), so_far, color=color, linewidth=2, marker="o", markersize=4)
        end = (len(counts), so_far[-1])
        axes.annotate(name, end, xytext=(6, 0), textcoords="offset points", color=color, va="center")
    axes.set_xlabel("customers served")
    axes.set_ylabel("failed calls so far")
    axes.set_title("A support agent that tries a call which always fails", loc="left", fontsize=11)
    axes.set_ylim(bottom=0)
    axes.margins(x=0)
    axes.grid(axis="y", alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)


def learn_game(out: Path) -> None:
    """Let three agents learn the game, with progress on stderr, and print how many games each arm won."""
    # All three at once, even on two cores: with two jobs, the third agent would leave a core idle.
    options = "--game peckingorder --episodes 100 --eval-every 10,25,50,100 --seed 0 1 2 --jobs 3 --json --out"
    command = [str(part) for part in (HARDWON, "run", "textworld", *options.split(), out)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as run:
        try:
            result, _ = run.communicate()
        except KeyboardInterrupt:
            run.wait()  # the terminal interrupts it as well, and it stops its own processes
            raise
    if run.returncode:
        raise SystemExit(run.returncode)  # the command said why
    print()
    for name, arm in json.loads(result)["arms"].items():
        print(f"  {ARMS[name]:46}{50 * arm['success_rate']:4.0f} of 50 games won")


def main() -> None:
    """Show both agents, and say what to do next."""
    from examples.support_agent import compare  # takes a second, in which Ctrl-C is heard as well

    out = Path(sys.argv[1])
    os.environ.pop("HARDWON_MODEL", None)  # the demo needs no key
    print("1. AN AGENT STOPS REPEATING A MISTAKE\n")
    draw_failures(compare(out / "agent.db"), out / "agent.png")
    print(GAME, flush=True)
    learn_game(out)
    print(NEXT.format(out=out, bin=os.path.relpath(HARDWON.parent)))


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("\nStopped. The same command continues.")
