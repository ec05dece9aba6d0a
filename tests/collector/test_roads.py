"""What the collectors do with our data: identity, order, queues, sampling, ports, one road for metrics."""

import re

import pytest

import otel_training
from otel_training import catalog, options, settings
from otel_training.catalog import spans as declared
from otel_training.testing import TelemetryCapture

GATEWAYS = {"gateway-prometheus.yaml": "prometheus", "gateway-remote-write.yaml": "prometheus_remote_write"}
COLLECTORS = ("agent.yaml", *GATEWAYS)
OTLP_PORTS = {"grpc": 4317, "http": 4318}


@pytest.fixture(params=GATEWAYS)
def gateway(request, document):
    return document(request.param)


def port_of(endpoint):
    return int(endpoint.rpartition(":")[2])


class TestMetrics:
    @pytest.mark.parametrize(("name", "exporter"), GATEWAYS.items())
    def test_identity_and_nothing_else_becomes_labels(self, document, name, exporter):
        labels = document(name)["exporters"][exporter]["resource_constant_labels"]
        assert labels == {"included": [attribute.name for attribute in catalog.IDENTITY]}

    @pytest.mark.parametrize(("name", "exporter"), GATEWAYS.items())
    def test_names_are_those_that_the_dashboards_ask_for(self, document, name, exporter):
        settings_here = document(name)["exporters"][exporter]
        assert settings_here["translation_strategy"] == "UnderscoreEscapingWithSuffixes"
        assert "namespace" not in settings_here
        # Scope labels are none of the page's, so both roads have the same labels.
        assert settings_here.get("without_scope_info") or settings_here.get("disable_scope_info")

    @pytest.mark.parametrize(("name", "exporter"), GATEWAYS.items())
    def test_one_variant_has_one_way_out(self, document, name, exporter):
        pipelines = document(name)["service"]["pipelines"]
        assert pipelines["metrics"]["exporters"] == [exporter]

    def test_the_variants_differ_in_nothing_else(self, document):
        one, other = (document(name) for name in GATEWAYS)
        for config, exporter in ((one, "prometheus"), (other, "prometheus_remote_write")):
            del config["exporters"][exporter]
            del config["service"]["pipelines"]["metrics"]["exporters"]
        assert one == other


class TestDelivery:
    @pytest.mark.parametrize("name", COLLECTORS)
    def test_the_memory_limiter_comes_first(self, document, name):
        for pipeline in document(name)["service"]["pipelines"].values():
            assert pipeline["processors"][0] == "memory_limiter"

    def test_the_agent_keeps_on_disk_what_it_took_and_never_gives_up(self, document):
        agent = document("agent.yaml")
        exporter = agent["exporters"]["otlp_http"]
        assert exporter["sending_queue"]["storage"] in agent["service"]["extensions"]
        assert exporter["retry_on_failure"]["max_elapsed_time"] == "0s"
        # Remote write refuses what comes out of order.
        assert exporter["sending_queue"]["num_consumers"] == 1

    @pytest.mark.parametrize("name", COLLECTORS)
    def test_no_processor_says_yes_before_the_data_are_safe(self, document, name):
        assert not [name for name in document(name)["processors"] if name.partition("/")[0] == "batch"]

    def test_the_gateway_answers_after_it_handed_on(self, gateway):
        exporters = gateway["exporters"]
        assert exporters["otlp_http/runs"]["sending_queue"] == {"enabled": False}
        if "prometheus_remote_write" in exporters:
            assert exporters["prometheus_remote_write"]["remote_write_queue"] == {"enabled": False}

    def test_what_a_process_says_about_itself_wins(self, document):
        assert document("agent.yaml")["processors"]["resource_detection"]["override"] is False


class TestPorts:
    @pytest.mark.parametrize("name", COLLECTORS)
    def test_otlp_comes_in_on_the_ports_that_we_send_to(self, document, name):
        protocols = document(name)["receivers"]["otlp"]["protocols"]
        assert {protocol: port_of(server["endpoint"]) for protocol, server in protocols.items()} == OTLP_PORTS

    @pytest.mark.parametrize("name", COLLECTORS)
    def test_nothing_is_open_to_the_network_unless_it_is_asked_for(self, document, name):
        config = document(name)
        servers = [*config["receivers"]["otlp"]["protocols"].values(), config["extensions"]["health_check"]]
        hosts = [server["endpoint"].rpartition(":")[0] for server in servers]
        hosts.append(own_page(config)["host"])
        assert [host for host in hosts if not re.fullmatch(r"\$\{env:\w+:-127\.0\.0\.1\}", host)] == []

    @pytest.mark.parametrize("name", COLLECTORS)
    def test_the_collectors_tell_of_themselves(self, document, name):
        config = document(name)
        assert "health_check" in config["service"]["extensions"]
        assert own_page(config)["port"] == 8888

    def test_the_pages_are_scraped_where_they_are(self, document):
        default = options.PROMETHEUS_PORT.default
        [static, files] = document("prometheus/scrape.yaml")["scrape_configs"]
        assert static["static_configs"] == [{"targets": [f"localhost:{default}"]}]
        assert files["file_sd_configs"] == [{"files": ["targets/*.json"]}]
        [remote] = document("prometheus/remote-write.yaml")["scrape_configs"]
        assert remote["static_configs"] == static["static_configs"]

    def test_the_gateway_is_scraped_where_it_serves(self, document):
        serves = port_of(document("gateway-prometheus.yaml")["exporters"]["prometheus"]["endpoint"])
        for name in ("prometheus/gateway.yaml", "compose/prometheus.yaml"):
            jobs = {job["job_name"]: job for job in document(name)["scrape_configs"]}
            [target] = jobs["otel-gateway"]["static_configs"][0]["targets"]
            assert port_of(target) == serves
            assert jobs["otel-gateway"]["honor_labels"] is True
            [own] = jobs["otel-collector"]["static_configs"][0]["targets"]
            assert port_of(own) == 8888

    def test_every_road_has_the_same_job(self, document):
        [static, files] = document("prometheus/scrape.yaml")["scrape_configs"]
        # Behind a collector, job is service.name.
        assert static["job_name"] == settings.resolve({}, {}).service_name
        assert files["relabel_configs"] == [{"target_label": "job", "replacement": static["job_name"]}]


def own_page(config):
    [reader] = config["service"]["telemetry"]["metrics"]["readers"]
    return reader["pull"]["exporter"]["prometheus"]


def drops(gateway, processor, span_name):
    """Whether the filter drops a span of the name; understands the few words that our conditions use."""
    [condition] = gateway["processors"][processor]["trace_conditions"]
    words = re.sub(r"span\.name == (\"[\w.]+\")", lambda match: str(match[1] == f'"{span_name}"'), condition)
    assert re.fullmatch(r"(?:True|False|or|not|[() ])+", words), condition
    return eval(words)


class TestTraces:
    def test_windows_and_steps_go_to_the_sampler_and_all_others_past_it(self, gateway):
        sampled = {declared.WINDOW_SPAN.name, declared.STEP_SPAN.name}
        for span in declared.SPANS:
            assert drops(gateway, "filter/runs", span.name) == (span.name in sampled)
            assert drops(gateway, "filter/windows", span.name) == (span.name not in sampled)
        pipelines = gateway["service"]["pipelines"]
        assert pipelines["traces/runs"]["processors"] == ["memory_limiter", "filter/runs"]
        assert pipelines["traces/windows"]["processors"] == [
            "memory_limiter",
            "filter/windows",
            "tail_sampling",
        ]

    def test_the_sampler_waits_for_the_whole_window(self, gateway):
        wait_s = int(gateway["processors"]["tail_sampling"]["decision_wait"].removesuffix("s"))
        assert wait_s > otel_training.start.__kwdefaults__["window_s"]

    def test_what_the_policies_look_for_is_what_real_spans_carry(self, gateway, clock):
        policies = {policy["name"]: policy for policy in gateway["processors"]["tail_sampling"]["policies"]}
        spans = a_run_with_a_nan_and_a_slow_step(clock)
        flag = policies["slow-steps"]["boolean_attribute"]
        slow = [
            span.attributes["training.step.number"]
            for span in spans
            if span.attributes.get(flag["key"]) is flag["value"]
        ]
        assert slow == [20]
        [code] = policies["non-finite"]["status_code"]["status_codes"]
        bad = [span.name for span in spans if span.status.status_code.name == code]
        assert bad == [declared.WINDOW_SPAN.name]

    def test_the_link_of_a_window_leads_to_a_trace_that_is_always_kept(self, gateway, clock):
        spans = a_run_with_a_nan_and_a_slow_step(clock)
        kept = [span for span in spans if not drops(gateway, "filter/runs", span.name)]
        [run_trace] = {span.context.trace_id for span in kept}
        windows = [span for span in spans if span.name == declared.WINDOW_SPAN.name]
        assert windows
        for window in windows:
            assert window.parent is None
            assert window.context.trace_id != run_trace
            assert [link.context.trace_id for link in window.links] == [run_trace]


def a_run_with_a_nan_and_a_slow_step(clock):
    capture = TelemetryCapture(clock=clock, run_id="run-1")
    emit = capture.hook.on_event
    emit("train_start", {"start_step": 0, "target_step": 30})
    for step in range(1, 31):
        clock.advance(5.0 if step == 20 else 0.1)
        emit("train_step", {"step": step, "loss": float("nan") if step == 5 else 1.0})
    emit("checkpoint", {"step": 30, "path": "c", "duration_s": 0.01})
    emit("train_end", {"steps": 30, "outcome": "completed"})
    spans = capture.spans()
    capture.close()
    return spans
