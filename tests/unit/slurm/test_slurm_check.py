"""A job against the recorded cluster. What SLURM itself said to the same requests stands beside them."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pytest

from dsrun.findings.finding import tables
from dsrun.slurm.job_check import check
from dsrun.slurm.render.notation import seconds
from dsrun.slurm.render.options import SlurmSpec
from dsrun.slurm.resources import may_take, request
from tests.slurm_recordings import recorded, recorded_facts

LICENSES = """\
LicenseName=fluent Total=10 Used=8 Free=2 Reserved=0 Remote=no
LicenseName=matlab@flex Total=4 Used=0 Free=4 Reserved=0 Remote=no
"""


@pytest.fixture(scope="module")
def facts():
    return recorded_facts()


def found(facts, **given):
    """Level and code of every finding that is not only information."""
    findings = check(SlurmSpec(**{"mem": "8G", **given}), facts)
    return [(each.level, each.code.removeprefix("slurm_")) for each in findings if each.level != "info"]


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"partition": "gpu", "time": "2-00:00:00", "nodes": 2, "gpus_per_node": "a100:2", "account": "phys"},
        {"gpus_per_node": "a100:2", "nodes": 2},
        {"gres": "gpu:3g.20gb:2"},
        {"gres": "gpu:2,bandwidth:lustre:1"},
        {"partition": "gpu", "account": "ML", "qos": "NORMAL"},  # SLURM takes these in any case
        {"constraint": "a100&ib"},
        {"constraint": "a100|mig", "nodes": 2},
        {"nodelist": "node[1-2]", "nodes": 2},
        {"nodelist": "node1", "nodes": 2},
        {"array": "0-1000%4"},
        {"array": "0-900:2%5000"},
        {"reservation": "maint"},
        {"partition": "debug", "qos": "normal", "time": "30", "cpus_per_task": 8},
        {"signal_lead": 60, "time": "5"},
        {"mem": "0", "nodelist": "node3"},
    ],
)
def test_resource_check_accepts_fitting_job(facts, given):
    assert found(facts, **given) == []


@pytest.mark.parametrize(
    ("given", "code", "message", "fix"),
    [
        ({"partition": "gpuu"}, "partition_unknown", "no partition 'gpuu'", "did you mean gpu?"),
        ({"partition": "GPU"}, "partition_unknown", "'GPU'", "did you mean gpu?"),
        ({"partition": "drain"}, "partition_closed", "takes no new jobs", "main, gpu, debug, low"),
        ({"partition": "empty"}, "nodes", "empty has 0 nodes", "--partition"),
        ({"partition": "gpu", "nodes": 3}, "node_limit", "at most 2 nodes, not 3", "--nodes 2"),
        ({"nodes": 6}, "nodes", "has 5 nodes, and the job wants 6", "--nodes 5"),
        # "Requested node configuration is not available" was all that SLURM said to these:
        ({"gpus_per_node": "A100:1"}, "gpu_type", "type 'A100'", "did you mean a100?"),
        ({"gpus_per_node": "v100:1"}, "gpu_type", "type 'v100'", "a100"),
        ({"gpus_per_node": "a100:5"}, "gpus", "5 a100 GPUs: at most 4", "less per node"),
        ({"gpus_per_node": "a100:4", "nodes": 2}, "gpus", "1 of the 5 nodes", "--nodes 1"),
        ({"gpus_per_node": "3g.20gb:1", "partition": "debug"}, "gpu_type", "debug has no GPUs of the type", "main"),
        ({"cpus_per_task": 65}, "cores", "at most 64", "less per node"),
        ({"cpus_per_task": 9, "partition": "debug"}, "cores", "at most 8", "less per node"),
        ({"mem": "700G"}, "memory", "700 GiB: at most 500 GiB", "less per node"),
        ({"mem": "127000", "nodelist": "node3"}, "memory", "at most 121.1 GiB", "less per node"),
        ({"exclude": "node1", "gpus_per_node": "a100:4"}, "gpus", "at most 2", "less per node"),
        ({"constraint": "a100&mig"}, "nodes", "0 nodes of those asked for", "ask for less"),
        ({"gpus_per_node": "3g.20gb:2", "cpus_per_task": 32}, "no_such_nodes", "0 of the 5 nodes", "less per node"),
        # "Invalid feature specification", "Invalid node name specified", "Invalid generic resource", ...
        ({"constraint": "A100"}, "feature_unknown", "feature 'A100'", "did you mean a100?"),
        ({"nodelist": "nodeX"}, "node_unknown", "no node nodeX", "did you mean node"),
        ({"exclude": "node[4-7]"}, "node_unknown", "node6, node7", "did you mean"),
        ({"nodelist": "node[1-3]"}, "nodelist_size", "names 3 nodes", "--nodes 3"),
        ({"gres": "nvme:1"}, "gres_unknown", "'nvme'", "bandwidth, gpu, mps, shard"),
        ({"reservation": "maintt"}, "reservation_unknown", "'maintt'", "did you mean maint?"),
        ({"licenses": "matlab:2"}, "license_unknown", "'matlab'", "remove it"),
        ({"array": "0-1001"}, "array_size", "numbers below 1001", "smaller arrays"),
        # Accounts and QOS.
        ({"account": "mll"}, "account_unknown", "'mll' is not your account", "did you mean ml?"),
        ({"account": "other"}, "account_unknown", "'other'", "ml, phys, root"),
        ({"qos": "lonng"}, "qos_unknown", "no QOS 'lonng'", "did you mean long?"),
        ({"qos": "urgent"}, "qos_account", "may not use QOS urgent", "--qos"),
        ({"qos": "long", "partition": "debug"}, "qos_account", "in partition debug", "--qos normal"),
        ({"qos": "long", "account": "phys", "partition": "debug"}, "qos_partition", "not take QOS long", "normal"),
        ({"qos": "long", "time": "6-0"}, "qos_time", "above the limit of QOS long", "--time 5-00:00:00"),
        ({"qos": "long", "gpus_per_node": "4", "nodes": 2}, "qos_gpus", "8 GPUs", "fewer"),
        ({"partition": "gpu,debug"}, "partitions", "no list of partitions", "--partition gpu"),
        # Taken by SLURM, and never started (PartitionTimeLimit, PartitionDown, "account not permitted"):
        ({"partition": "gpu", "time": "5-0"}, "time_limit", "5-00:00:00 is above the limit", "--time 2-00:00:00"),
        ({"partition": "old"}, "partition_down", "old is DOWN", "main, gpu, debug, low"),
        ({"partition": "debug", "mem": "40000"}, "memory", "at most 31.2 GiB", "less per node"),
        ({"partition": "low", "account": "phys"}, "account_partition", "may not use partition low", "--account ml"),
        ({"partition": "gpu", "account": "root"}, "account_partition", "root may not use", "--account"),
        # A signal before the start does nothing, at the time limit of the job or of the partition.
        ({"signal_lead": 600, "time": "5"}, "signal_lead", "that is 0:05:00", "--signal-lead"),
        ({"signal_lead": 7200, "partition": "gpu"}, "signal_lead", "that is 1:00:00", "--signal-lead"),
    ],
)  # fmt: skip
def test_resource_check_refuses_impossible_job(facts, given, code, message, fix):
    assert [each for level, each in found(facts, **given) if level == "error"] == [code]
    (finding,) = (each for each in check(SlurmSpec(**{"mem": "8G", **given}), facts) if each.level == "error")
    assert message in finding.message
    assert fix in finding.fix
    assert finding.where.startswith("--")


def test_nodelist_outside_partition_refused(facts):
    assert ("error", "node_elsewhere") in found(facts, partition="gpu", nodelist="node4")


def test_one_fitting_partition_of_several_is_enough(facts):
    """One partition that fits is enough."""
    levels = found(facts, partition="low,main", time="3-00:00:00")
    assert levels == [("warning", "time_limit")]
    assert ("error", "time_limit") in found(facts, partition="low,gpu", time="3-00:00:00")


@pytest.mark.parametrize(("enforced", "level"), [("NO", "warning"), ("ANY", "warning"), ("ALL", "error")])
def test_limits_of_each_partition_of_a_list(enforced, level):
    """With ALL sbatch refuses what is beyond one of them, though another takes it (tried: tests/slurm)."""
    text = re.sub(r"(EnforcePartLimits += )NO", rf"\g<1>{enforced}", recorded("config"))
    facts = recorded_facts(config=text, accounting=None)
    assert found(facts, partition="gpu,main", time="5-0") == [(level, "time_limit")]
    assert found(facts, partition="gpu,main", nodes=3, time="60")[0] == (level, "node_limit")
    # What the nodes of a partition lack is for its own jobs alone.
    lacks = found(facts, partition="debug,main", gpus_per_node="3g.20gb:1", time="5")
    assert ("error", "gpu_type") not in lacks
    assert ("warning", "gpu_type") in lacks


def test_fix_of_a_limit_keeps_those_of_all_partitions():
    text = recorded("config").replace("EnforcePartLimits       = NO", "EnforcePartLimits       = ALL")
    facts = recorded_facts(config=text, accounting=None)
    spec = SlurmSpec(mem="8G", partition="gpu,debug,low", time="30-0")
    fixes = {str(each.fix) for each in check(spec, facts) if each.code == "slurm_time_limit"}
    limits = [facts.partition(name).time_limit for name in ("gpu", "debug", "low")]
    assert len(fixes) == 1
    (time,) = {fix.partition(";")[0].removeprefix("--time ") for fix in fixes}
    assert seconds(time) == min(limits)


@pytest.mark.parametrize(
    ("given", "level", "code"),
    [
        ({"mem_per_cpu": "1G", "cpus_per_task": 8}, None, None),
        ({"mem_per_gpu": "8G", "gpus_per_node": "a100:4"}, None, None),
        ({"mem_per_gpu": "200G", "gpus_per_node": "a100:4"}, "error", "memory"),
        ({"mem_per_cpu": "100G", "cpus_per_task": 8}, "error", "memory"),
        # All cores of the node, and their memory.
        ({"mem_per_cpu": "20G", "cpus_per_task": 1, "exclusive": True}, "error", "memory"),
    ],
)
def test_memory_of_cpus_and_gpus_is_that_of_the_node(facts, given, level, code):
    """Nor is anything said about --mem."""
    findings = check(SlurmSpec(time="60", **given), facts)
    assert [(each.level, each.code.removeprefix("slurm_")) for each in findings if each.level == "error"] == (
        [(level, code)] if code else []
    )
    assert not any(each.where == "--mem" for each in findings)


def test_cores_are_those_of_nodes_that_the_job_may_get(facts):
    """Not those of a poorer node without its GPUs."""
    for gpus, share in ((None, 4), ("a100:4", 16), ("3g.20gb:2", 4)):
        wanted = request(SlurmSpec(gpus_per_node=gpus))
        assert facts.cores_per_gpu("gpu", partial(may_take, wanted)) == share
    excluded = request(SlurmSpec(exclude="node1"))
    assert facts.usual_gpus("gpu", partial(may_take, excluded)) == 4


def test_down_nodes_are_a_warning(facts):
    """Nodes that are down are a warning."""
    findings = check(SlurmSpec(nodelist="node4", mem="8G"), facts)
    (warning,) = (each for each in findings if each.level == "warning")
    assert warning.code == "slurm_nodes_down"
    assert "node4: idle+drain, bad disk" in warning.message


def test_untyped_gpus_in_mixed_partition_are_a_warning(facts):
    findings = check(SlurmSpec(partition="gpu", gpus_per_node="4", mem="8G", time="60"), facts)
    assert [(each.level, each.code) for each in findings] == [("warning", "slurm_gpu_kinds")]
    assert "a100, rtx_2080_ti, 3g.20gb, 1g.5gb" in findings[0].message
    assert "--gpus-per-node a100:N" in findings[0].fix
    assert found(facts, partition="debug", gpus_per_node="4", time="5") == []


def test_default_time_and_memory_of_partition_reported():
    """Little memory and the default time of the partition are mentioned."""
    codes = {
        each.code: each.message for each in check(SlurmSpec(partition="gpu", gpus_per_node="a100:2"), recorded_facts())
    }
    assert codes == {"slurm_time_default": "without --time, partition gpu ends the job after 1:00:00"}
    told = {
        each.code: each.message for each in check(SlurmSpec(gpus_per_node="a100:4", cpus_per_task=8), recorded_facts())
    }
    assert told == {"slurm_memory_default": "without --mem the job gets 7.8 GiB of each node for 4 workers"}


def test_accounts_unchecked_without_accounting():
    """Accounts are not checked on a cluster without accounting."""
    facts = recorded_facts(accounting=None)
    assert found(facts, account="anything", qos="any") == []


def test_unknown_account_and_qos_are_warnings_where_none_is_enforced():
    from dsrun.slurm.cluster.discover import read_accounting

    free = read_accounting(associations="", qualities="normal||", enforced="none")
    facts = recorded_facts(accounting=free)
    assert found(facts, account="anything") == [("warning", "account_unknown")]
    assert found(facts, qos="any") == [("warning", "qos_unknown")]


def test_user_without_account_refused():
    from dsrun.slurm.cluster.discover import read_accounting

    nobody = read_accounting(associations="", qualities="normal||", enforced="associations")
    assert found(recorded_facts(accounting=nobody)) == [("error", "account_missing")]


def test_partition_allowed_groups():
    closed = recorded("partitions").replace(
        "PartitionName=main AllowGroups=ALL", "PartitionName=main AllowGroups=hpc,ml"
    )
    assert found(recorded_facts(partitions=closed)) == [("error", "group")]
    assert found(recorded_facts(partitions=closed, groups=("ada", "hpc"))) == []


@pytest.mark.parametrize(
    ("licenses", "code", "fix"),
    [
        ("fluent:11", "license_count", "--licenses fluent:10"),
        ("fluent:5,fluent:6", "license_count", "--licenses fluent:10"),
        ("Fluent", "license_unknown", "did you mean fluent?"),
        ("matlab:1", "license_unknown", "did you mean matlab@flex?"),
        ("fluent=3", "license_unknown", "did you mean fluent?"),
        ("fluent:x", "license_form", "NAME:COUNT"),
        ("nope|fluent:11", "license_unknown", "known: fluent, matlab@flex"),
        ("fluent", None, ""),
        ("fluent:10;matlab@flex:4", None, ""),
        ("nope|fluent:2", None, ""),
    ],
)
def test_licenses_by_name_and_count(licenses, code, fix):
    """As sbatch 22.05 took and refused them, but for alternatives, which came later."""
    facts = recorded_facts(licenses=LICENSES)
    errors = [each for each in check(SlurmSpec(mem="8G", licenses=licenses), facts) if each.level == "error"]
    assert [each.code for each in errors] == ([f"slurm_{code}"] if code else [])
    assert all(fix in each.fix for each in errors)
    # A controller that does not tell them is no reason to refuse.
    assert found(recorded_facts(licenses=""), licenses=licenses) == []


def test_no_default_partition():
    none = recorded("partitions").replace("Default=YES", "Default=NO")
    assert found(recorded_facts(partitions=none)) == [("error", "partition_missing")]


def test_every_slurm_finding_is_documented():
    """Every finding is in the docs."""
    root = Path(__file__).parents[3]
    codes = {code for code in tables() if re.match("slurm_(?!missing_|lacks|unreachable)", code)}
    codes |= {"slurm_gpus", "slurm_gres", "slurm_cores", "slurm_memory"}  # slurm_lacks, by the kind of wish
    assert len(codes) > 30
    docs = "".join(path.read_text() for path in (root / "docs").glob("slurm*"))
    assert {code for code in codes if f"`{code}`" not in docs} == set()
