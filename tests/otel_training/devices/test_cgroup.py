"""Limits of control groups, from trees of files as the kernel lays them out."""

import pytest

from otel_training.devices.cgroup import Cgroup, Memory, of_this_process

GIB = 1 << 30


@pytest.fixture
def tree(tmp_path):
    def write(files):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return write


def test_version_2_inside_a_container(tree):
    root = tree(
        {
            "memory.current": f"{6 * GIB}\n",
            "memory.max": f"{8 * GIB}\n",
            "memory.stat": f"anon {4 * GIB}\nfile {2 * GIB}\ninactive_file {GIB}\nactive_file {GIB}\n",
            "cpu.max": "150000 100000\n",
        }
    )
    cgroup = Cgroup(root, "0::/\n")
    assert cgroup.memory() == Memory(usage_bytes=6 * GIB, available_bytes=3 * GIB)
    assert cgroup.cpus() == 1.5


def test_the_tightest_of_nested_groups_counts(tree):
    root = tree(
        {
            "pod/memory.current": f"{7 * GIB}",
            "pod/memory.max": f"{8 * GIB}",
            "pod/cpu.max": "200000 100000",
            "pod/train/memory.current": f"{2 * GIB}",
            "pod/train/memory.max": f"{16 * GIB}",
            "pod/train/cpu.max": "max 100000",
        }
    )
    cgroup = Cgroup(root, "0::/pod/train\n")
    assert cgroup.memory() == Memory(7 * GIB, GIB)
    assert cgroup.cpus() == 2.0


def test_no_limit_gives_nothing(tree):
    root = tree({"a/memory.current": "5", "a/memory.max": "max\n", "a/cpu.max": "max 100000\n"})
    cgroup = Cgroup(root, "0::/a\n")
    assert cgroup.memory() is None
    assert cgroup.cpus() is None


def test_version_1(tree):
    root = tree(
        {
            "memory/docker/abc/memory.usage_in_bytes": f"{3 * GIB}",
            "memory/docker/abc/memory.limit_in_bytes": f"{4 * GIB}",
            "memory/docker/abc/memory.stat": f"inactive_file 1\ntotal_inactive_file {GIB}\n",
            "memory/memory.usage_in_bytes": f"{30 * GIB}",
            "memory/memory.limit_in_bytes": "9223372036854771712",
            "cpu,cpuacct/docker/abc/cpu.cfs_quota_us": "50000",
            "cpu,cpuacct/docker/abc/cpu.cfs_period_us": "100000",
            "cpu,cpuacct/cpu.cfs_quota_us": "-1",
            "cpu,cpuacct/cpu.cfs_period_us": "100000",
        }
    )
    membership = "12:memory:/docker/abc\n5:cpu,cpuacct:/docker/abc\n1:name=systemd:/docker/abc\n"
    cgroup = Cgroup(root, membership)
    assert cgroup.memory() == Memory(3 * GIB, 2 * GIB)
    assert cgroup.cpus() == 0.5


def test_a_path_of_the_host_that_the_container_does_not_see(tree):
    root = tree({"memory/memory.usage_in_bytes": "100", "memory/memory.limit_in_bytes": "1000"})
    assert Cgroup(root, "4:memory:/kubepods/pod1/abc\n").memory() == Memory(100, 900)


def test_a_path_outside_of_the_namespace_leads_to_its_root(tree):
    root = tree({"memory.current": "100", "memory.max": "1000"})
    assert Cgroup(root, "0::/../../other\n").memory() == Memory(100, 900)


def test_more_used_than_allowed_leaves_nothing(tree):
    root = tree({"memory.current": "1200", "memory.max": "1000"})
    assert Cgroup(root, "0::/").memory() == Memory(1200, 0)


@pytest.mark.parametrize("membership", ["", "0::/gone\n", "nonsense\n"])
def test_nothing_there_gives_nothing(tmp_path, membership):
    assert Cgroup(tmp_path / "none", membership).memory() is None
    assert Cgroup(tmp_path / "none", membership).cpus() is None


def test_this_process_has_groups_where_there_is_a_proc():
    assert of_this_process() is None or ":" in of_this_process().membership
