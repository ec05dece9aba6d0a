"""The Kubernetes files fit each other, the collectors' configs and our settings."""

import re

import pytest

from otel_training import identity, options, settings

FILES = ("daemonset-agent.yaml", "gateway.yaml", "podmonitor.yaml", "training-job.yaml")
# What Kubernetes puts in where the files name a field of the pod.
FIELDS = {
    "status.hostIP": "10.0.0.7",
    "spec.nodeName": "node-7",
    "metadata.labels['batch.kubernetes.io/controller-uid']": "8f0c1a52",
    "metadata.annotations['batch.kubernetes.io/job-completion-index']": "1",
}


@pytest.fixture
def kubernetes(documents):
    """All objects by kind and name, with the labels of the pods they make."""
    loaded = [document for name in FILES for document in documents(f"kubernetes/{name}")]
    return {(document["kind"], document["metadata"]["name"]): document for document in loaded}


def pods_of(kubernetes):
    return [o["spec"]["template"] for o in kubernetes.values() if "template" in o["spec"]]


def environment(container):
    """The variables of a container as a process in it sees them."""
    found = {}
    for variable in container["env"]:
        value = variable.get("value") or FIELDS[variable["valueFrom"]["fieldRef"]["fieldPath"]]
        found[variable["name"]] = re.sub(r"\$\((\w+)\)", lambda name: found[name[1]], value)
    return found


def test_every_mount_has_its_volume_and_every_volume_is_mounted(kubernetes):
    for pod in pods_of(kubernetes):
        containers = [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]
        mounted = {mount["name"] for container in containers for mount in container["volumeMounts"]}
        assert mounted == {volume["name"] for volume in pod["spec"]["volumes"]}


def test_every_port_that_is_named_is_declared(kubernetes):
    for pod in pods_of(kubernetes):
        for container in pod["spec"]["containers"]:
            declared = {port["name"] for port in container["ports"]}
            probes = [container[probe] for probe in ("livenessProbe", "readinessProbe") if probe in container]
            assert {probe["httpGet"]["port"] for probe in probes} <= declared


def test_selectors_find_their_pods(kubernetes):
    labels = [pod["metadata"]["labels"] for pod in pods_of(kubernetes)]
    for (kind, name), document in kubernetes.items():
        if kind == "Service" and name in {job for made, job in kubernetes if made == "Job"}:
            # Kubernetes itself puts the job's name on its pods.
            assert document["spec"]["selector"] == {"batch.kubernetes.io/job-name": name}
        elif kind in ("Service", "PodMonitor", "DaemonSet", "Deployment"):
            selector = document["spec"]["selector"]
            wanted = selector.get("matchLabels", selector)
            assert [found for found in labels if wanted.items() <= found.items()], (kind, name)


@pytest.mark.parametrize("name", ["otel-training", "otel-training-gateway"])
def test_a_monitor_asks_for_ports_that_exist(kubernetes, name):
    monitor = kubernetes["PodMonitor", name]["spec"]
    [ports] = [
        {port["name"] for container in pod["spec"]["containers"] for port in container["ports"]}
        for pod in pods_of(kubernetes)
        if monitor["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    ]
    assert {endpoint["port"] for endpoint in monitor["podMetricsEndpoints"]} <= ports


class TestTrainingJob:
    @pytest.fixture
    def container(self, kubernetes):
        [container] = kubernetes["Job", "gpt-small"]["spec"]["template"]["spec"]["containers"]
        return container

    def test_there_is_one_named_port_for_each_local_rank(self, kubernetes, container):
        [count] = [re.fullmatch(r"--nproc-per-node=(\d+)", argument) for argument in container["args"][1:2]]
        ranks = range(int(count[1]))
        first = options.PROMETHEUS_PORT.default
        assert container["ports"] == [{"name": f"rank-{n}", "containerPort": first + n} for n in ranks]
        monitor = kubernetes["PodMonitor", "otel-training"]["spec"]
        assert [endpoint["port"] for endpoint in monitor["podMetricsEndpoints"]] == [
            f"rank-{n}" for n in ranks
        ]

    def test_the_series_have_the_job_of_the_other_roads(self, kubernetes):
        pod = kubernetes["Job", "gpt-small"]["spec"]["template"]
        label = kubernetes["PodMonitor", "otel-training"]["spec"]["jobLabel"]
        assert pod["metadata"]["labels"][label] == settings.resolve({}, {}).service_name

    def test_metrics_take_the_page_alone_and_spans_the_agent_of_the_node(self, container):
        resolved = settings.resolve({}, environment(container))
        assert (resolved.prometheus, resolved.metrics_exporters) == (True, ())
        assert resolved.traces_exporters == ("otlp",)
        assert str(resolved.traces_otlp.endpoint) == "http://10.0.0.7:4318/v1/traces"
        # Prometheus comes from outside the pod.
        assert resolved.prometheus_host == "0.0.0.0"

    def test_the_run_has_one_id_on_all_ranks_and_over_restarts(self, container):
        environ = environment(container)
        found = identity.detect(environ={**environ, "RANK": "9", "LOCAL_RANK": "1", "WORLD_SIZE": "16"})
        assert found.run_id == FIELDS["metadata.labels['batch.kubernetes.io/controller-uid']"]

    def test_every_pod_finds_rank_0(self, kubernetes, container):
        job = kubernetes["Job", "gpt-small"]["spec"]
        assert job["completions"] == job["parallelism"]
        assert f"--nnodes={job['completions']}" in container["args"]
        subdomain = job["template"]["spec"]["subdomain"]
        assert kubernetes["Service", subdomain]["spec"]["clusterIP"] == "None"
        assert f"--rdzv-endpoint=gpt-small-0.{subdomain}:29500" in container["args"]


class TestCollectors:
    @pytest.mark.parametrize(
        ("kind", "name", "config"),
        [
            ("DaemonSet", "otel-training-agent", "agent.yaml"),
            ("Deployment", "otel-training-gateway", "gateway-prometheus.yaml"),
        ],
    )
    def test_the_variables_are_those_of_the_config(self, kubernetes, folder, kind, name, config):
        pod = kubernetes[kind, name]["spec"]["template"]["spec"]
        [container] = pod["containers"]
        text = (folder / config).read_text()
        required = set(re.findall(r"\$\{env:(\w+)\}", text))
        optional = set(re.findall(r"\$\{env:(\w+):-", text))
        given = {variable["name"] for variable in container["env"]}
        helpers = {"NODE_NAME", "OTEL_RESOURCE_ATTRIBUTES", "GOMEMLIMIT"}
        assert required <= given <= required | optional | helpers
        assert container["args"] == [f"--config={container['volumeMounts'][0]['mountPath']}/{argument(name)}"]

    def test_the_queue_lies_on_the_node(self, kubernetes, document):
        pod = kubernetes["DaemonSet", "otel-training-agent"]["spec"]["template"]["spec"]
        queue = document("agent.yaml")["extensions"]["file_storage"]["directory"]
        [mount] = [m for m in pod["containers"][0]["volumeMounts"] if m["name"] == "queue"]
        assert re.fullmatch(r"\$\{env:AGENT_QUEUE_DIR:-(.+)/queue\}", queue)[1] == mount["mountPath"]
        [volume] = [volume for volume in pod["volumes"] if volume["name"] == "queue"]
        assert "hostPath" in volume

    def test_the_agent_sends_to_the_service_of_the_gateway(self, kubernetes):
        [container] = kubernetes["DaemonSet", "otel-training-agent"]["spec"]["template"]["spec"]["containers"]
        service = kubernetes["Service", "otel-training-gateway"]
        address = f"{service['metadata']['name']}.{service['metadata']['namespace']}"
        assert environment(container)["GATEWAY_ENDPOINT"] == f"http://{address}:4318"
        assert 4318 in [port["port"] for port in service["spec"]["ports"]]

    def test_pods_reach_the_agent_on_the_ports_of_otlp(self, kubernetes):
        [container] = kubernetes["DaemonSet", "otel-training-agent"]["spec"]["template"]["spec"]["containers"]
        open_ports = {
            port["hostPort"]: port["containerPort"] for port in container["ports"] if "hostPort" in port
        }
        assert open_ports == {4317: 4317, 4318: 4318}


def argument(name):
    """The file that the config map has: the key that the comment's kubectl command gives it."""
    return name.removeprefix("otel-training-") + ".yaml"
