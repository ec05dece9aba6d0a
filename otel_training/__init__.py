"""OpenTelemetry metrics and spans, and a Prometheus scrape page, for PyTorch training."""
