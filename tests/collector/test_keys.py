"""Names and keys of the collector's components are those of a current release.

The lists hold what otelcol-contrib 0.162 accepts, as far as we use it or are likely to. Sources, all in
open-telemetry/opentelemetry-collector (core) and open-telemetry/opentelemetry-collector-contrib:

- names: metadata.yaml of each component; core#14396 and contrib#45339 renamed many to lower_snake_case
- keys: config.schema.yaml and README.md of each component, and core's exporter/exporterhelper/README.md,
  config/configretry and config/confighttp for what exporters share
"""

import pytest

ANY = object()
"""Free text, a number or a list: no keys below."""

RETRY = {
    "enabled": ANY, "initial_interval": ANY, "randomization_factor": ANY, "multiplier": ANY,
    "max_interval": ANY, "max_elapsed_time": ANY,
}  # fmt: skip
BATCH = {"flush_timeout": ANY, "sizer": ANY, "min_size": ANY, "max_size": ANY, "partition": ANY}
QUEUE = {
    "enabled": ANY, "num_consumers": ANY, "queue_size": ANY, "sizer": ANY, "block_on_overflow": ANY,
    "wait_for_result": ANY, "storage": ANY, "batch": BATCH,
}  # fmt: skip
TLS = {"insecure": ANY, "insecure_skip_verify": ANY, "ca_file": ANY, "cert_file": ANY, "key_file": ANY}
HTTP_CLIENT = {"endpoint": ANY, "compression": ANY, "timeout": ANY, "tls": TLS, "headers": ANY, "auth": ANY}
SERVER = {"endpoint": ANY, "tls": TLS, "auth": ANY}
RESOURCE_LABELS = {"included": ANY, "excluded": ANY}
STATUS = {"status_codes": ANY}
POLICY = {
    "name": ANY, "type": ANY, "status_code": STATUS, "boolean_attribute": {"key": ANY, "value": ANY},
    "probabilistic": {"sampling_percentage": ANY, "hash_salt": ANY},
    "latency": {"threshold_ms": ANY, "upper_threshold_ms": ANY},
}  # fmt: skip

KEYS = {
    "receivers": {"otlp": {"protocols": {"grpc": SERVER, "http": SERVER}}},
    "processors": {
        "memory_limiter": {
            "check_interval": ANY, "limit_mib": ANY, "spike_limit_mib": ANY, "limit_percentage": ANY,
            "spike_limit_percentage": ANY,
        },
        "resource_detection": {
            "detectors": ANY, "override": ANY, "timeout": ANY, "refresh_interval": ANY,
            "system": {"hostname_sources": ANY, "resource_attributes": ANY},
        },
        "filter": {"error_mode": ANY, "trace_conditions": ANY, "metric_conditions": ANY},
        "tail_sampling": {
            "decision_wait": ANY, "decision_wait_after_root_received": ANY, "num_traces": ANY,
            "expected_new_traces_per_sec": ANY, "sample_on_first_match": ANY,
            "decision_cache": {"sampled_cache_size": ANY, "non_sampled_cache_size": ANY},
            "policies": [POLICY],
        },
    },
    "exporters": {
        "otlp_http": {**HTTP_CLIENT, "retry_on_failure": RETRY, "sending_queue": QUEUE},
        "prometheus": {
            **SERVER, "namespace": ANY, "const_labels": ANY, "send_timestamps": ANY, "metric_expiration": ANY,
            "enable_open_metrics": ANY, "without_scope_info": ANY, "translation_strategy": ANY,
            "resource_constant_labels": RESOURCE_LABELS,
        },
        "prometheus_remote_write": {
            **HTTP_CLIENT, "namespace": ANY, "external_labels": ANY, "translation_strategy": ANY,
            "disable_scope_info": ANY, "resource_constant_labels": RESOURCE_LABELS,
            "remote_write_queue": {"enabled": ANY, "queue_size": ANY, "num_consumers": ANY},
            "retry_on_failure": RETRY, "target_info": {"enabled": ANY}, "send_metadata": ANY,
            "max_batch_size_bytes": ANY, "protobuf_message": ANY,
        },
    },
    "extensions": {
        "health_check": {"endpoint": ANY, "path": ANY},
        "file_storage": {
            "directory": ANY, "timeout": ANY, "fsync": ANY, "create_directory": ANY,
            "directory_permissions": ANY, "recreate": ANY,
            "compaction": {
                "directory": ANY, "on_start": ANY, "on_rebound": ANY, "cleanup_on_start": ANY,
                "max_transaction_size": ANY, "check_interval": ANY, "rebound_needed_threshold_mib": ANY,
                "rebound_trigger_threshold_mib": ANY,
            },
        },
    },
}  # fmt: skip

RENAMED = {
    "logging": "debug",
    "otlp": "otlp_grpc",  # the exporter; the receiver kept its name
    "otlphttp": "otlp_http",
    "prometheusremotewrite": "prometheus_remote_write",
    "resourcedetection": "resource_detection",
}
FILES = ("agent.yaml", "gateway-prometheus.yaml", "gateway-remote-write.yaml")


def unknown(value, known, path):
    """Yield the path of each key that is not in the list."""
    if known is ANY:
        return
    if isinstance(known, list):
        for position, item in enumerate(value):
            yield from unknown(item, known[0], f"{path}[{position}]")
        return
    for key, below in (value or {}).items():
        if key not in known:
            yield f"{path}.{key}"
        else:
            yield from unknown(below, known[key], f"{path}.{key}")


def complaints(config):
    found = []
    for kind, components in KEYS.items():
        for name, settings in (config.get(kind) or {}).items():
            component = name.partition("/")[0]
            if component in RENAMED and (kind, component) != ("receivers", "otlp"):
                found.append(f"{kind}.{name}: now {RENAMED[component]}")
            elif component not in components:
                found.append(f"{kind}.{name}: no such component in the list")
            else:
                found += unknown(settings, components[component], f"{kind}.{name}")
    return found


@pytest.mark.parametrize("name", FILES)
def test_names_and_keys_are_current(document, name):
    assert complaints(document(name)) == []


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ({"exporters": {"otlphttp/runs": {}}}, "exporters.otlphttp/runs: now otlp_http"),
        ({"exporters": {"kafka": {}}}, "exporters.kafka: no such component in the list"),
        ({"processors": {"memory_limiter": {"limt_mib": 5}}}, "processors.memory_limiter.limt_mib"),
        (
            {"exporters": {"otlp_http": {"sending_queue": {"batch": {"timeout": "1s"}}}}},
            "exporters.otlp_http.sending_queue.batch.timeout",
        ),
        (
            {"processors": {"tail_sampling": {"policies": [{"name": "a"}, {"nmae": "b"}]}}},
            "processors.tail_sampling.policies[1].nmae",
        ),
    ],
)
def test_the_lists_see_a_planted_mistake(config, complaint):
    assert complaints(config) == [complaint]
