"""DeepSpeed's configuration for the model as it is: the small runs have proved that DeepSpeed takes its own."""

import json
from collections.abc import Iterator

from dsrun.findings.finding import Finding
from dsrun.findings.texts import finding_of
from dsrun.recipe.recipe_spec import TrainSpec
from dsrun.train.certify.subject import CertifySubject
from dsrun.train.loop.engine import configuration, hidden_size
from dsrun.zero.lint.config_check import check


def deepspeed(subject: CertifySubject) -> Iterator[Finding]:
    stages = [stage for stage in subject.request.stages if stage]
    problems = []
    for stage in stages:
        config = configuration(TrainSpec(model=subject.request.model, zero=str(stage)), {}, hidden_size(subject.config))
        found = check(json.dumps(config), file=f"ZeRO-{stage}", target="trainer", model_type=subject.config.model_type)
        problems += [each for each in found if each.level == "error"]
    yield from problems
    if stages and not problems:
        yield finding_of("deepspeed.accepted", stages=" and ".join(map(str, stages)))
