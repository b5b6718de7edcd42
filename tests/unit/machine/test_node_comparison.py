"""In what nodes differ: one comparison for the doctor's test between nodes and for wheels sent to them."""

from dsrun.collectives.observations import NodeFacts
from dsrun.collectives.observations import differences as between_ranks
from dsrun.findings.finding import text_of
from dsrun.machine.node_comparison import NodeDifference, compared
from dsrun.wheel.verify.nodes import NodeReport
from dsrun.wheel.verify.probed_machine import ProbedMachine
from dsrun.wheel.verify.wheel_check import differences as of_wheels


def test_facts_that_differ():
    nodes = {"n1": {"torch": "2.5", "driver": "580"}, "n2": {"torch": "2.5", "driver": "550"}}
    (driver,) = compared(nodes)
    assert (driver.fact, driver.values) == ("driver", {"n1": "580", "n2": "550"})
    assert compared({}) == compared({"n1": nodes["n1"]}) == []


def test_minority_is_named_where_most_agree():
    def minority(*values: str) -> list[str]:
        return NodeDifference(fact="torch", values={f"n{n}": value for n, value in enumerate(values)}).minority

    assert minority("a", "b", "a", "c", "a") == ["n1", "n3"]
    assert minority("a", "b") == minority("a", "a", "b", "c") == []


def test_nodes_of_a_value_are_listed_as_slurm_does():
    values = {f"n{n}": "old" if n == 3 else "new" for n in range(10)}
    finding = NodeDifference(fact="driver", values=values).finding("warning")
    assert (finding.level, finding.code) == ("warning", "nodes_differ")
    assert "new on n[0-2,4-9]; old on n3" in finding.message


def test_values_are_in_the_order_of_the_nodes():
    values = {"n1": "b", "n2": "a", "n3": "b"}
    finding = NodeDifference(fact="torch", values=values).finding(where="n2")
    assert [part.values["value"] for part in finding.message.values["parts"].values] == ["b", "a"]
    assert (finding.level, finding.where) == ("error", "n2")


def test_other_gpus_cannot_be_installed():
    found = [NodeDifference(fact=fact, values={"n1": "a", "n2": "b"}).finding() for fact in ("gpus", "torch")]
    assert [each.fix == text_of("nodes_differ.gpus") for each in found] == [True, False]


def test_many_names_without_a_pattern_are_counted():
    """Up to 80 characters of them are listed: here 9 × 8, and 10 × 8, with commas."""
    for count, listed in ((9, True), (10, False)):
        names = [f"node-{letter * 3}" for letter in "abcdefghijkl"[:count]]
        values = {**dict.fromkeys(names, "new"), "other": "old"}
        (part, _) = NodeDifference(fact="driver", values=values).finding().message.values["parts"].values
        expected = ",".join(names) if listed else text_of("nodes_differ.many", count=count)
        assert part.values["nodes"] == expected


def test_doctor_and_wheel_push_tell_the_same():
    """Of torch, which has to be the same for both."""
    facts = {node: NodeFacts(host=node, torch=torch) for node, torch in (("a", "2.5"), ("b", "2.6"))}
    machines = [
        ProbedMachine(
            node=node, python="cp311", abi="cp311", python_version="3.11.7", machine="x86_64", torch=own.torch
        )
        for node, own in facts.items()
    ]
    ((told, _),) = between_ranks(facts, {})
    assert of_wheels([NodeReport(node=each.node, machine=each) for each in machines]) == [told]


def test_wheel_push_names_nodes_without_a_driver():
    machine = {"python": "cp311", "abi": "cp311", "python_version": "3.11.7", "machine": "x86_64"}
    reports = [
        NodeReport(node=n, machine=ProbedMachine(node=n, driver=own, **machine))
        for n, own in (("a", "580"), ("b", None))
    ]
    (finding,) = of_wheels([*reports, NodeReport(node="c")])
    assert finding.level == "error"
    assert "none on b" in finding.message
