"""Dashboards and alert rules, made from the catalog so that no name and no unit stands twice.

``python -m otel_training.artifacts`` writes them to ``grafana/``, where they are committed; a test fails when
the catalog and the files have drifted apart. ``queries`` knows PromQL, ``variables`` and ``panels`` know
Grafana, ``boards/`` holds what is shown, ``thresholds`` when to call, ``records`` and ``alerts`` how.
"""
