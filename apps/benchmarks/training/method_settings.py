"""The methods of `hardwon bench methods`: a name of the catalog, and settings where the catalog leaves them open.

`METHODS` are compared by default. `STEADY` is plain GRPO at a high learning rate, what is said to keep it from losing,
one by one, and `steady`: the lower rate of the benchmark, the penalty and the best weights together.
"""

MAX_STEPS = 8
"""Steps of an episode of the worlds."""
METHODS: dict[str, tuple[str, tuple[str, ...]]] = {
    name: (name, tuple(f"roles.policy.{setting}" for setting in settings))
    for name, *settings in (
        # how outcomes and rewards become advantages
        ("grpo",),
        ("dr-grpo", "learner.constant=8"),
        ("reinforce", "credit.settings.discount=0.95"),
        ("rloo",),
        ("lite",),
        ("gigpo",),
        ("hgpo", "credit.settings.episode=1.0"),
        ("salt",),
        ("slea",),
        ("decs",),
        ("empg", "credit.settings.zeta=0.05"),
        ("infopo",),
        ("mrt", "sources.progress.of=reward"),
        ("oprl", "sources.implicit.lr=0.0001"),
        ("prorag",),
        # the loss
        ("epo",),
        ("lp-reg", "loss.terms.lp-reg.share=0.05"),
        ("flow-grpo",),
        ("loop",),
        ("turn-ratio",),
        # which tasks, and how episodes begin
        ("informative",),
        ("tree",),
    )
}

HIGH = "roles.policy.learner.lr=0.0015"
KL, BEST = "roles.policy.loss.kl=0.05", "eval.every=2"
"""A penalty on the divergence from the start, and the best of the weights on tasks for development."""
STEADY = {
    name: ("grpo", settings)
    for name, settings in {
        "high-rate": (HIGH,),
        "high-rate-kl": (HIGH, KL),
        "high-rate-large-groups": (HIGH, "arms.control=16", "run.groups=2"),
        "high-rate-more-tasks": (HIGH, "arms.control=4", "run.groups=8"),
        "high-rate-best": (HIGH, BEST),
        "steady": (KL, BEST),
    }.items()
}
