"""InfiniBand ports, from a recorded /sys/class/infiniband."""

import pytest

from tests.unit.doctor.recorded import found_by, levels_by_code, recorded


def port(
    device: str, *, state: str = "4: ACTIVE", physical: str = "5: LinkUp", rate: str = "400 Gb/sec (4X NDR)", **counters
):
    folder = f"/sys/class/infiniband/{device}/ports/1"
    files = {"state": state, "phys_state": physical, "rate": rate, "link_layer": "InfiniBand"}
    counts = {
        f"counters/{name}": str(counters.get(name, 0)) for name in ("symbol_error", "link_downed", "port_xmit_discards")
    }
    return {f"{folder}/{name}": f"{text}\n" for name, text in (files | counts).items()}


def four(**last):
    files = {}
    for number in range(3):
        files |= port(f"mlx5_{number}")
    return files | port("mlx5_3", **last)


def test_active_ports(tmp_path):
    findings = found_by("infiniband", recorded(tmp_path, four()))
    assert [each.code for each in findings] == ["infiniband"]
    assert "mlx5_3:1 400 Gb/s" in findings[0].message
    assert levels_by_code("infiniband", recorded(tmp_path / "other")) == {}, "no card, nothing to say"


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        ({"state": "2: INIT"}, {"infiniband_no_subnet_manager": "error"}),
        ({"state": "1: DOWN", "physical": "2: Polling"}, {"infiniband_down": "warning"}),
        ({"state": "1: DOWN", "physical": "3: Disabled"}, {"infiniband": "info"}),
        ({"rate": "100 Gb/sec (1X NDR)"}, {"infiniband_rate": "warning"}),
        ({"symbol_error": 4711}, {"infiniband_errors": "warning"}),
        ({"link_downed": 11}, {"infiniband_errors": "warning"}),
        ({"link_downed": 10, "port_xmit_discards": 99}, {"infiniband": "info"}),
    ],
)
def test_ailing_port(tmp_path, last, expected):
    findings = found_by("infiniband", recorded(tmp_path, four(**last)))
    assert {each.code: each.level for each in findings} == expected
    if "infiniband" not in expected:
        assert "mlx5_3" in findings[0].message
        assert findings[0].fix


def test_no_port_is_active(tmp_path):
    files = port("mlx5_0", state="1: DOWN", physical="2: Polling")
    assert levels_by_code("infiniband", recorded(tmp_path, files)) == {"infiniband_down": "warning"}


def test_second_port_without_a_cable_is_no_fault(tmp_path):
    files = port("mlx5_0") | port("mlx5_1", state="1: DOWN", physical="2: Polling")
    assert levels_by_code("infiniband", recorded(tmp_path, files)) == {"infiniband": "info"}


@pytest.mark.parametrize("names", ["^mlx5_3", "=mlx5_0,mlx5_1,mlx5_2", "mlx5_0:1,mlx5_1"])
def test_nccl_ib_hca_leaves_ports_out(tmp_path, names):
    machine = recorded(tmp_path, four(state="2: INIT"), environ={"NCCL_IB_HCA": names})
    assert levels_by_code("infiniband", machine) == {"infiniband": "info"}


def test_nccl_ib_hca_begins_names(tmp_path):
    """Unless an equals sign asks for whole names."""
    assert levels_by_code("infiniband", recorded(tmp_path, four(), environ={"NCCL_IB_HCA": "mlx5"})) == {
        "infiniband": "info"
    }
    exact = recorded(tmp_path, four(), environ={"NCCL_IB_HCA": "=mlx5"})
    assert levels_by_code("infiniband", exact) == {"infiniband_none_chosen": "error"}


def test_nccl_does_not_use_infiniband(tmp_path):
    assert (
        levels_by_code("infiniband", recorded(tmp_path, four(state="2: INIT"), environ={"NCCL_IB_DISABLE": "1"})) == {}
    )


def test_nccl_ib_hca_names_no_port(tmp_path):
    machine = recorded(tmp_path, four(), environ={"NCCL_IB_HCA": "mlx4"})
    assert levels_by_code("infiniband", machine) == {"infiniband_none_chosen": "error"}
