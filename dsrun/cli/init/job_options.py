"""The options of a SLURM job: partition, GPUs, nodes and time, each answer checked against the cluster."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from dsrun.cli.init.interview import InitAnswer, InitInterview, InitQuestion, question
from dsrun.errors import UsageError
from dsrun.findings.finding import Finding, errors_in
from dsrun.findings.show import shown
from dsrun.hardware.gres import written_gpus
from dsrun.options import OptionValue
from dsrun.slurm.cluster.cluster_facts import NO_LIMIT, ClusterFacts, Partition
from dsrun.slurm.job_check import check
from dsrun.slurm.render.notation import clock, parse_gpus
from dsrun.slurm.render.options import SlurmSpec
from dsrun.slurm.render.spec import make_spec
from dsrun.system.terminal.stderr import print_note

ACCOUNT = "--account"
LONGEST_DEFAULT_S = 24 * 3600
DEMO_TIME_S = 30 * 60
OPTIONS = ("partition", "account", "gpus_per_node", "nodes", "time")


def ask_job(interview: InitInterview, given: dict[str, Any], facts: ClusterFacts | None, *, is_demo: bool) -> "InitJob":
    """Ask for the options of a job, which cannot be checked where the cluster's `facts` are None."""
    job = InitJob(facts)
    default = _default_partition(facts) if facts else None
    if facts is not None or given["partition"]:
        job.ask(interview, _partition_question(facts, default), given)
    if given["account"] or job.needs_account():
        known = facts.accounting if facts else None
        mine = dict.fromkeys(each.account for each in known.associations) if known else {}
        job.ask(interview, question(ACCOUNT, str, choices=[(name, "") for name in mine]), given)
    partition = facts.partition(job.spec.partition) if facts else None
    job.ask(interview, _gpus_question(facts, partition), given)
    least = max(1, partition.min_nodes if partition else 1)
    why = "one is enough to begin with" if least == 1 else "the least that the partition takes"
    job.ask(interview, question("--nodes", str, default=str(least), why=why), given)
    longest = min(partition.time_limit if partition else NO_LIMIT, DEMO_TIME_S if is_demo else LONGEST_DEFAULT_S)
    why = "the demo takes minutes" if is_demo else "an unfinished job is requeued and resumes from its checkpoint"
    job.ask(interview, question("--time", str, default=clock(longest), why=why), given)
    for line in job.remarks():
        print_note(line)
    return job


class InitJob:
    """The job's options so far, checked against the cluster whenever one is added."""

    def __init__(self, facts: ClusterFacts | None) -> None:
        self.facts = facts
        self.answers: dict[str, InitAnswer[str]] = {}

    @property
    def spec(self) -> SlurmSpec:
        return self._with()

    def _with(self, **more: str) -> SlurmSpec:
        """The job with further options."""
        values = {name: answer.value for name, answer in self.answers.items()} | more
        flags = {name: f"--{name.replace('_', '-')}" for name in values}
        spec = make_spec(OptionValue(name=name, values=(text,), where=flags[name]) for name, text in values.items())
        if self.facts is None:
            return spec
        if spec.gpus_per_node is None:
            spec = replace(spec, gpus_per_node=str(self.facts.usual_gpus(spec.partition) or 0))
        least = partition.min_nodes if (partition := self.facts.partition(spec.partition)) else 1
        return spec if "nodes" in values else replace(spec, nodes=max(1, least))

    def ask(self, interview: InitInterview, asked: InitQuestion[str], given: dict[str, Any]) -> None:
        """Add the answer to a question; one that the cluster would refuse is asked for again."""
        name = asked.flag[2:].replace("-", "_")

        def checked(text: str) -> str:
            text = asked.check(text)
            before = {finding.code for finding in self.errors()}
            for finding in self.errors(**{name: text}):
                # An account is asked for after the partition that needs it.
                if finding.where == asked.flag or (finding.code not in before and finding.where != ACCOUNT):
                    raise UsageError(f"{asked.flag} {text}: {finding.message}", fix=finding.fix)
            return text

        self.answers[name] = interview.answer(replace(asked, check=checked), given[name])

    def needs_account(self) -> bool:
        """Whether the partition does not take the user's default account."""
        return any(each.where == ACCOUNT for each in self.errors())

    def errors(self, **more: str) -> list[Finding]:
        """What the cluster has against the job with further options."""
        return errors_in(check(self._with(**more), self.facts)) if self.facts else []

    def remarks(self) -> Iterator[str]:
        """What the cluster would refuse or remark on all the same."""
        for finding in check(self.spec, self.facts) if self.facts else ():
            if finding.level != "info":
                yield shown(finding).line


def _default_partition(facts: ClusterFacts) -> str | None:
    """The cluster's default partition if it has GPUs, else the first with GPUs that takes this user's jobs."""
    names = [each.name for each in sorted(facts.partitions, key=lambda each: not each.default) if not each.hidden]
    with_gpus = [name for name in names if facts.usual_gpus(name)]
    return next((name for name in (*with_gpus, *names) if not InitJob(facts).errors(partition=name)), None)


def _partition_question(facts: ClusterFacts | None, default: str | None) -> InitQuestion[str]:
    choices = []
    for each in facts.partitions if facts else ():
        nodes = facts.nodes_of(each) if facts else ()
        if each.hidden or not each.is_up or not nodes:
            continue
        free, gpus = sum(node.gpus_free for node in nodes), sum(node.gpu_count for node in nodes)
        limit = "no time limit" if each.time_limit == NO_LIMIT else f"at most {clock(each.time_limit)}"
        shown = f"{free} of {gpus} GPUs free" if gpus else "no GPUs"
        choices.append((each.name, f"{len(nodes)} node{'s' * (len(nodes) != 1)}, {shown}, {limit}"))
    is_default = facts is not None and default is not None and (found := facts.partition(default)) and found.default
    why = "the cluster's default" if is_default else "the first with GPUs that takes your jobs"
    return question("--partition", str, choices=choices, default=default, why=why)


def _gpus_question(facts: ClusterFacts | None, partition: Partition | None) -> InitQuestion[str]:
    usual = facts.usual_gpus(partition.name if partition else None) if facts else None
    kinds = {}
    for node in facts.nodes_of(partition) if facts and partition else ():
        for group in node.gpus:
            memory = " or ".join(map(str, group.memory))
            kinds[f"{group.type}:{group.count}" if group.type else str(group.count)] = (
                f"{group.count} × {group.model or group.name}" + (f", {memory} GiB" if memory else "")
            )
    several = len({text.rpartition(":")[0] for text in kinds}) > 1
    default = next(iter(kinds)) if several else str(usual or 0) if facts else None
    why = "as its nodes have" if usual else "the partition has no GPUs"
    choices = list(kinds.items()) if several else ()
    return question("--gpus-per-node", _check_gpus, choices=choices, default=default, why=why)


def _check_gpus(text: str) -> str:
    if parse_gpus(written_gpus(text)) is None:
        raise UsageError(f"--gpus-per-node {text} is not a number of GPUs", fix="4, or a100:4")
    return written_gpus(text)
