"""ClusterFacts from what a real cluster printed."""

from __future__ import annotations

import math

import pytest

from dsrun.hardware.gpu_facts import lookup, memory_sizes
from dsrun.slurm.cluster.discover import gpu_groups, read_accounting
from dsrun.slurm.render import notation
from dsrun.system.hostlist import compressed, expand_hosts
from dsrun.system.slurm import pairs
from tests.slurm_recordings import recorded_facts


@pytest.fixture(scope="module")
def facts():
    return recorded_facts()


def test_partitions_with_their_limits(facts):
    gpu = facts.partition("gpu")
    assert gpu.nodes == ("node1", "node2", "node3")
    assert (gpu.time_limit, gpu.time_default, gpu.max_nodes) == (2 * 86400, 3600, 2)
    assert gpu.accounts == ("ml", "phys")
    assert gpu.job_defaults["DefMemPerGPU"] == "8000"
    debug = facts.partition("debug")
    assert (debug.time_limit, debug.max_cpus_per_node, debug.max_memory_per_node) == (1800, 8, 32000)
    assert debug.qos == ("normal",)
    assert facts.partition("low").denied_accounts == ("phys",)
    assert [each.name for each in facts.partitions if not each.is_up] == ["old", "drain"]
    assert facts.partition("empty").nodes == ()


def test_the_default_partition_and_no_limits(facts):
    main = facts.partition(None)
    assert main.name == "main"
    assert main.time_limit == math.inf
    assert main.time_default is None
    assert main.accounts == ()
    assert facts.partition("nope") is None


def test_gpus_of_several_kinds_on_a_node_free_and_busy(facts):
    a100, turing = facts.by_name["node2"].gpus
    assert (a100.type, a100.count, a100.busy, a100.capability) == ("a100", 2, 2, (8, 0))
    assert (turing.type, turing.count, turing.busy) == ("rtx_2080_ti", 2, 2)
    assert (turing.capability, turing.memory) == ((7, 5), (11,))
    assert facts.by_name["node2"].gpus_free == 0
    assert facts.by_name["node1"].gpus_free == 4


def test_mig_slices_shares_and_untyped_gpus(facts):
    large, small = facts.by_name["node3"].gpus
    assert (large.type, large.count, large.busy, large.memory) == ("3g.20gb", 2, 1, (20,))
    assert (small.type, small.memory, small.capability) == ("1g.5gb", (5,), None)
    (plain,) = facts.by_name["node5"].gpus
    assert (plain.type, plain.count, plain.busy, plain.name) == (None, 2, 1, "gpu")
    assert facts.by_name["node5"].resources == ("gpu", "bandwidth")
    assert facts.by_name["node4"].gpus == ()


def test_cores_and_memory(facts):
    assert (facts.by_name["node1"].cores, facts.by_name["node1"].memory) == (64, 512000)
    # MemSpecLimit is kept for the system.
    assert facts.by_name["node3"].memory == 124000
    assert facts.by_name["node2"].cores_free == 32 - facts.by_name["node2"].cores_busy


def test_drained_node_has_nothing_free(facts):
    """A drained node has nothing free, whatever its reason says."""
    node = facts.by_name["node4"]
    assert node.state == "IDLE+DRAIN"
    assert not node.is_usable
    assert node.reason.startswith("bad disk, State=IDLE soon [")
    assert node.cores_free == 0


@pytest.mark.parametrize(
    ("state", "usable"),
    [
        ("IDLE", True), ("MIXED+PLANNED", True), ("ALLOCATED+COMPLETING", True), ("IDLE+CLOUD+POWERED_DOWN", True),
        ("IDLE~", True), ("DOWN*+NOT_RESPONDING", False), ("DOWN*", False), ("MIXED+DRAIN", False), ("UNKNOWN", False),
        ("FUTURE", False), ("IDLE+MAINT+RESERVED", False),
    ],
)  # fmt: skip
def test_node_states_that_accept_jobs(state, usable):
    facts = recorded_facts(nodes=f"NodeName=n1 CPUTot=4 Gres=gpu:2 State={state} RealMemory=1000")
    assert facts.nodes[0].is_usable is usable
    assert facts.nodes[0].gpus_free == (2 if usable else 0)


def test_usual_gpus_and_cores_of_a_partition(facts):
    assert facts.usual_gpus("gpu") == 4
    assert facts.cores_per_gpu("gpu") == 4  # node3 is the poorest: 16 cores, 4 slices
    assert facts.cores_per_gpu("debug") == 2  # MaxCPUsPerNode is 8
    assert facts.usual_gpus("empty") is None
    assert facts.usual_gpus("nope") is None


def test_cluster_name_version_and_limits(facts):
    assert (facts.name, facts.version, facts.max_array_size, facts.memory_per_core) == (
        "lab",
        "22.05.8",
        1001,
        1000,
    )
    assert facts.reservations == ("maint",)
    assert facts.licenses == {}


def test_accounting_associations_and_qos(facts):
    known = facts.accounting
    assert known.default_account == "ml"
    assert {(each.account, each.partition) for each in known.associations} == {
        ("phys", None), ("ml", "debug"), ("ml", None), ("root", None),
    }  # fmt: skip
    assert known.qualities[1].time_limit == 5 * 86400
    assert known.qualities[1].max_gpus == 4
    assert known.enforced == {"associations", "limits", "qos"}


def test_accounting_without_associations():
    known = read_accounting(associations="", qualities="normal||\n", enforced="none")
    assert known.associations == ()
    assert known.default_account is None
    assert known.enforced == frozenset()


def test_untyped_gpu_model_from_node_feature():
    """Untyped GPUs may be named by a feature."""
    (group,) = gpu_groups("gpu:4", "gpu:1", ("skylake", "h100", "ib"))
    assert (group.name, group.capability, group.busy) == ("H100", (9, 0), 1)
    # Two models, or two kinds of GPUs on the node: the feature may mean the other.
    assert gpu_groups("gpu:4", "", ("h100", "a100"))[0].capability is None
    assert [each.capability for each in gpu_groups("gpu:fast:4,gpu:slow:2", "", ("h100",))] == [None, None]
    # A type of the site's own.
    assert gpu_groups("gpu:big:4", "", ("a100",))[0].capability == (8, 0)


def test_mig_slice_type_with_gpu_model():
    (group,) = gpu_groups("gpu:a100_3g.20gb:2", "gpu:a100_3g.20gb:0(IDX:N/A)")
    assert (group.capability, group.memory, group.busy) == ((8, 0), (20,), 0)
    (group,) = gpu_groups("gpu:1g.10gb:7(S:0)", "", ("h100",))
    assert (group.capability, group.memory) == ((9, 0), (10,))


def test_gpu_memory_sizes_of_ambiguous_model():
    assert set(memory_sizes(lookup("a100"))) == {40, 80}
    assert memory_sizes(lookup("l4")) == (24,)


def test_scontrol_record_with_blanks_and_repeated_key():
    """A value may contain blanks; of a repeated key the first value counts."""
    found = pairs("NodeName=n1 OS=Linux 6.1 #1  State=IDLE Reason=seen State=DOWN once")
    assert (found["OS"], found["State"]) == ("Linux 6.1 #1", "IDLE")
    assert pairs("No licenses configured in Slurm.") == {}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("30", 1800),
        ("1:30", 90),
        ("2:00:00", 7200),
        ("1-12", 129600),
        ("UNLIMITED", math.inf),
        ("NONE", None),
    ],
)
def test_slurm_time_format(text, expected):
    assert notation.seconds(text) == expected


def test_time_and_memory_units_formatted():
    assert notation.clock(90061) == "1-01:01:01"
    assert notation.clock(math.inf) == "no limit"
    assert [notation.mib(text) for text in ("4000", "2G", "1.5T", "UNLIMITED")] == [
        4000,
        2048,
        1.5 * 1024**2,
        None,
    ]
    assert (notation.gib(64000), notation.gib(800)) == ("62.5 GiB", "800 MiB")


@pytest.mark.parametrize(
    "names", [["gpu01", "gpu02", "gpu03", "gpu7", "login"], ["a1n1", "a1n2"], ["x"], ["n9", "n10", "n11"]]
)
def test_hostlist_compression_round_trip(names):
    """Compressed host names expand to the same names again."""
    text = compressed(names)
    assert sorted(expand_hosts(text)) == sorted(names)


def test_hostlist_compression():
    assert compressed(["gpu01", "gpu02", "gpu03", "gpu7"]) == "gpu[01-03],gpu7"
