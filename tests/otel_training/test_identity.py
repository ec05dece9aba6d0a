"""Who is speaking, from the environments of torchrun, Slurm and Kubernetes."""

import re
import socket

import pytest

from otel_training.identity import Identity, detect

TORCHRUN = {
    "RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4", "GROUP_RANK": "1",
    "TORCHELASTIC_RUN_ID": "job-7", "TORCHELASTIC_RESTART_COUNT": "2", "TORCHELASTIC_MAX_RESTARTS": "3",
    "MASTER_ADDR": "node0", "MASTER_PORT": "29500",
}  # fmt: skip
SLURM = {
    "SLURM_JOB_ID": "4711", "SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_NTASKS": "4",
    "SLURM_NODEID": "1", "SLURM_RESTART_COUNT": "1", "SLURM_JOB_NAME": "train",
}  # fmt: skip
SLURM_ARRAY = {**SLURM, "SLURM_JOB_ID": "4712", "SLURM_ARRAY_JOB_ID": "4711", "SLURM_ARRAY_TASK_ID": "9"}
KUBERNETES = {  # a PyTorchJob of the Kubeflow training operator
    "RANK": "2", "WORLD_SIZE": "3", "MASTER_ADDR": "job-master-0", "MASTER_PORT": "23456",
    "PET_NODE_RANK": "2", "HOSTNAME": "job-worker-1", "KUBERNETES_SERVICE_HOST": "10.0.0.1",
}  # fmt: skip


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        pytest.param(TORCHRUN, ("job-7", 5, 1, 8, 2), id="torchrun"),
        pytest.param(SLURM, ("4711", 3, 1, 4, 1), id="Slurm"),
        pytest.param(SLURM_ARRAY, ("4712_9", 3, 1, 4, 1), id="Slurm array"),
        pytest.param(
            {**SLURM, **TORCHRUN, "TORCHELASTIC_RUN_ID": "none"}, ("4711", 5, 1, 8, 2), id="torchrun in Slurm"
        ),
        pytest.param({**KUBERNETES, "OTEL_TRAINING_RUN_ID": "job"}, ("job", 2, 0, 3, 0), id="Kubernetes"),
        pytest.param({"OTEL_TRAINING_RUN_ID": "mine"}, ("mine", 0, 0, 1, 0), id="one process"),
        pytest.param(
            {"SLURM_JOB_ID": "1", "RANK": "", "WORLD_SIZE": ""}, ("1", 0, 0, 1, 0), id="empty is unset"
        ),
        pytest.param({"SLURM_JOB_ID": "1", "RANK": " 3 "}, ("1", 3, 0, 4, 0), id="a rank without its world"),
    ],
)
def test_launchers_say_who_runs(environ, expected):
    found = detect(environ)
    assert (found.run_id, found.rank, found.local_rank, found.world_size, found.attempt) == expected
    assert found.run_name == found.run_id
    assert found.host == socket.gethostname()


def test_the_run_id_is_looked_for_in_order():
    environ = {**SLURM_ARRAY, "TORCHELASTIC_RUN_ID": "elastic", "OTEL_TRAINING_RUN_ID": "variable"}
    order = ["argument"]
    assert detect(environ, run_id="argument").run_id == "argument"
    for name in ("OTEL_TRAINING_RUN_ID", "TORCHELASTIC_RUN_ID", "SLURM_ARRAY_TASK_ID", "SLURM_JOB_ID"):
        order.append(detect(environ).run_id)
        del environ[name]
    assert order == ["argument", "variable", "elastic", "4712_9", "4712"]
    assert re.fullmatch("[0-9a-f]{12}", detect({}).run_id)


def test_a_random_id_is_told_only_where_ranks_would_differ(caplog):
    assert detect({}).run_id != detect({}).run_id
    assert caplog.records == []
    found = detect({"RANK": "0", "WORLD_SIZE": "8"})
    (record,) = caplog.records
    assert found.run_id in record.getMessage()
    assert "OTEL_TRAINING_RUN_ID" in record.getMessage()


def test_one_launcher_gives_the_whole_set():
    found = detect({**SLURM, "RANK": "0", "WORLD_SIZE": "2"})
    assert (found.rank, found.local_rank, found.world_size) == (0, 0, 2)


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"RANK": "x"}, ["RANK='x'", "whole number"]),
        ({"RANK": "-1"}, ["RANK='-1'", "whole number"]),
        ({"RANK": "1.5"}, ["RANK='1.5'"]),
        ({"RANK": "0", "LOCAL_RANK": "first"}, ["LOCAL_RANK='first'"]),
        ({"RANK": "0", "WORLD_SIZE": "many"}, ["WORLD_SIZE='many'"]),
        ({"RANK": "8", "WORLD_SIZE": "8"}, ["RANK=8", "WORLD_SIZE=8"]),
        ({"SLURM_PROCID": "4", "SLURM_NTASKS": "4"}, ["SLURM_PROCID=4", "SLURM_NTASKS=4"]),
        ({"SLURM_PROCID": "?"}, ["SLURM_PROCID='?'"]),
        ({"TORCHELASTIC_RESTART_COUNT": "twice"}, ["TORCHELASTIC_RESTART_COUNT='twice'"]),
        ({"SLURM_RESTART_COUNT": "twice"}, ["SLURM_RESTART_COUNT='twice'"]),
    ],
    ids=str,
)
def test_a_wrong_value_is_named_with_what_is_accepted(environ, words):
    with pytest.raises(ValueError, match=words[0].partition("=")[0]) as refusal:
        detect(environ)
    assert [word for word in words if word not in str(refusal.value)] == []


def test_what_cannot_be_encoded_or_is_too_long_is_mended_where_it_enters():
    found = detect({"OTEL_TRAINING_RUN_ID": "run-\udcff"}, run_name="n" * 1000)
    assert found.run_id == "run-?"
    assert found.run_name == "n" * 128


def test_the_instance_is_the_same_after_a_restart_and_another_on_each_rank():
    first = Identity(run_id="a", run_name="x", rank=0)
    assert first.instance_id == Identity(run_id="a", run_name="y", rank=0, attempt=3, host="h").instance_id
    assert first.instance_id != Identity(run_id="a", run_name="x", rank=1).instance_id
    assert first.instance_id != Identity(run_id="b", run_name="x", rank=0).instance_id


def test_identity_as_attributes_and_labels():
    found = detect(TORCHRUN, run_name="a run")
    assert found.point_attributes == {
        "training.run.id": "job-7", "training.run.name": "a run", "training.rank": 5,
    }  # fmt: skip
    assert found.resource_attributes == {
        **found.point_attributes, "training.local_rank": 1, "training.world_size": 8,
    }  # fmt: skip
    assert found.labels == ("job-7", "a run", "5")
