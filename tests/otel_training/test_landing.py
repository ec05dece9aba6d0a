"""The landing page: what it says at each stage of a run, what it leaves out, and that nothing breaks out."""

import base64
import hashlib
import re
from html.parser import HTMLParser

import pytest
import yaml

from otel_training import catalog
from otel_training.identity import Identity
from otel_training.landing import render_landing
from otel_training.state import State

NOW_UNIX_S = 1_764_800_000.0
IDENTITY = Identity(run_id="a1b2c3", run_name="my run", rank=2, world_size=8, host="node-7", attempt=3)
VOID = {"meta", "img", "br", "link", "input", "hr"}


class Page(HTMLParser):
    """Reads a page as a browser does: its elements, its texts, and whether tags are balanced."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.attributes, self.raw, self.open = [], [], {}, []
        self.texts = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("script", "style"):
            self.raw[self.open[-1]] = self.raw.get(self.open[-1], "") + data
        else:
            self.texts.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())


def mid_run():
    state = State()
    state.set(catalog.RUN_INFO, 1, "bf16", "cuda", "4", None)
    state.set(catalog.RUN_ACTIVE, 1)
    state.set(catalog.STEP_CURRENT, 1234)
    state.set(catalog.STEP_TARGET, 4936)
    state.set(catalog.STEP_LAST_TIME, NOW_UNIX_S - 2)
    state.set(catalog.THROUGHPUT_STEPS, 5.0)
    state.set(catalog.THROUGHPUT_TOKENS, 91_234.4)
    state.add(catalog.TOKENS, 20_217_856)
    state.observe(catalog.STEP_DURATION, 0.1, 3)
    state.observe(catalog.STEP_DURATION, 0.5)
    state.set(catalog.LOSS, 2.71828)
    state.set(catalog.LEARNING_RATE, 2.9e-4)
    state.set(catalog.CHECKPOINT_LAST_TIME, NOW_UNIX_S - 200)
    state.set(catalog.CHECKPOINT_LAST_STEP, 1000)
    state.add(catalog.TIME, 30.0, "step")
    state.add(catalog.TIME, 10.0, "data_wait")
    return state


def show(state, identity=IDENTITY, address="http://127.0.0.1:9464"):
    return render_landing(state.snapshot(), identity, address=address, now_unix_s=NOW_UNIX_S)


def text(state, **options):
    return Page(show(state, **options)).text


def scrape_config(address):
    return yaml.safe_load(
        re.search(r"<pre>(.*?)</pre>", show(State(), address=address), re.DOTALL)[1].replace("&quot;", '"')
    )


def test_it_says_which_run_this_is():
    shown = text(mid_run())
    for fact in (
        "my run",
        "run a1b2c3",
        "rank 2 of 8",
        "host node-7",
        "restarts 3",
        "device cuda",
        "precision bf16",
    ):
        assert fact in shown


def test_it_says_what_is_true_now():
    shown = text(mid_run())
    for fact in (
        "my run training",
        "Step 1,234 of 4,936 25%",
        "last step 2 s ago, about 12 min to go",
        "Loss 2.718",
        "Learning rate 0.00029",
        "Tokens per second 91,234",
        "Tokens 20,217,856",
        "Step time 200 ms",
        "Last checkpoint 3 min 20 s ago, at step 1,000",
        "step 30 s 75.0%",
        "data wait 10 s 25.0%",
    ):
        assert fact in shown


def test_bars_are_as_long_as_what_they_show():
    html = show(mid_run())
    assert '<i style="width:25.00%">' in html
    assert re.findall(r"flex:([\d.]+)", html) == ["0.7500", "0.2500"]


def test_it_says_where_things_are():
    page = Page(show(mid_run()))
    assert [value for name, value in page.attributes if name == "href"] == ["metrics", "healthz"]
    assert "application/openmetrics-text" in page.text


@pytest.mark.parametrize(
    ("address", "target", "scheme"),
    [
        ("http://127.0.0.1:9464", "127.0.0.1:9464", None),
        ("http://[::1]:9470", "[::1]:9470", None),
        ("https://node-7:9464", "node-7:9464", "https"),
    ],
)
def test_the_scrape_config_is_ready_to_use(address, target, scheme):
    (job,) = scrape_config(address)["scrape_configs"]
    assert job.get("scheme") == scheme
    assert job["static_configs"] == [{"targets": [target]}]


def test_before_the_first_event_only_the_identity_is_known():
    shown = text(State())
    assert "my run not started" in shown
    assert "Waiting for the first event." in shown
    for name in ("Step", "Loss", "Tokens", "checkpoint", "Where the time went", "nan"):
        assert name not in shown


def test_what_is_absent_is_left_out():
    state = State()
    state.set(catalog.STEP_CURRENT, 7)
    page = Page(show(state))
    assert "Step 7 " in page.text
    assert "of" not in page.text.split("Where things are")[0].split("Step 7")[1]
    assert "dl" not in page.tags
    assert ("class", "bar") not in page.attributes


@pytest.mark.parametrize(
    ("ends", "status"),
    [
        ([("completed", None)], "completed"),
        ([("failed", "RuntimeError")], "failed: RuntimeError"),
        ([("interrupted", None)], "interrupted"),
        ([], "ended"),
        ([("interrupted", None), ("completed", None)], "ended"),
    ],
)
def test_an_ended_run_says_how(ends, status):
    state = mid_run()
    state.set(catalog.RUN_ACTIVE, 0)
    for end in ends:
        state.add(catalog.RUNS, 1, *end)
    shown = text(state)
    assert f"my run {status} run a1b2c3" in shown
    assert "to go" not in shown


def test_a_run_that_goes_on_after_an_end_is_training():
    state = mid_run()
    state.add(catalog.RUNS, 1, "interrupted", None)
    assert "my run training" in text(state)


def test_values_that_were_not_finite_are_a_warning_only_when_there_were_some():
    state = mid_run()
    assert "NaN" not in text(state)
    state.add(catalog.NONFINITE_VALUES, 2, "loss", "nan")
    state.add(catalog.NONFINITE_VALUES, 3, "grad_norm", "positive_infinity")
    page = Page(show(state))
    assert "NaN or infinite 5 in grad_norm, loss" in page.text
    assert ("class", "warn") in page.attributes


@pytest.mark.parametrize(
    ("current", "target", "percent"), [(0, 100, "0%"), (150, 100, "100%"), (1, 3, "33%"), (5, 0, None)]
)
def test_progress_stays_between_nothing_and_all(current, target, percent):
    state = State()
    state.set(catalog.STEP_CURRENT, current)
    state.set(catalog.STEP_TARGET, target)
    page = Page(show(state))
    assert re.findall(r"\d+%", page.text) == ([percent] if percent else [])


@pytest.mark.parametrize(
    ("age_s", "said"),
    [
        (-5.0, "0 ms"),
        (0.0123, "12.3 ms"),
        (1.5, "1.5 s"),
        (59.4, "59.4 s"),
        (60.0, "1 min"),
        (200.0, "3 min 20 s"),
        (3600.0, "1 h"),
        (7 * 3600 + 125.0, "7 h 2 min"),
        (3 * 86400 + 7200.0, "3 d 2 h"),
    ],
)
def test_durations_are_said_in_the_units_that_matter(age_s, said):
    state = State()
    state.set(catalog.STEP_CURRENT, 1)
    state.set(catalog.STEP_LAST_TIME, NOW_UNIX_S - age_s)
    assert f"last step {said} ago" in text(state)


UGLY = (
    "</title></script><script>alert(1)</script>\"'><img src=x onerror=alert(1)>&amp; $name ${x} \\ \n "
    + "long" * 200
)


def test_nothing_breaks_out_of_the_page():
    state = mid_run()
    state.set(catalog.RUN_INFO, 1, UGLY, UGLY, UGLY, UGLY)
    state.set(catalog.VALIDATION_LOSS, 1.0, UGLY)
    state.add(catalog.NONFINITE_VALUES, 1, UGLY, "nan")
    state.set(catalog.RUN_ACTIVE, 0)
    state.add(catalog.RUNS, 1, "failed", UGLY)
    identity = Identity(run_id=UGLY, run_name=UGLY, host=UGLY)
    page = Page(show(state, identity=identity, address=f"http://{UGLY}"))
    calm = Page(show(mid_run()))
    assert set(page.tags) == set(calm.tags)
    assert page.tags.count("script") == 1
    assert page.raw == calm.raw
    assert {name for name, _ in page.attributes} == {name for name, _ in calm.attributes}
    assert " ".join(UGLY.split()) in page.text


def test_the_page_loads_nothing_from_elsewhere_and_runs_its_own_script_only():
    page = Page(show(mid_run()))
    assert not {"link", "img", "iframe", "object"} & set(page.tags)
    assert "src" not in {name for name, _ in page.attributes}
    assert "url(" not in page.raw["style"]
    assert "@import" not in page.raw["style"]
    (policy,) = (value for name, value in page.attributes if value and value.startswith("default-src"))
    script_hash = base64.b64encode(hashlib.sha256(page.raw["script"].encode()).digest()).decode()
    assert f"script-src 'sha256-{script_hash}'" in policy
    assert policy.startswith("default-src 'none';")


def test_every_state_of_time_has_a_colour():
    style = Page(show(State())).raw["style"]
    for state in catalog.TIME_STATE.values:
        assert style.count(f"--{state}:") == 2  # for light and for dark screens


def test_a_histogram_that_has_seen_nothing_has_no_mean():
    state = State()
    state.observe(catalog.STEP_DURATION, 1.0, 0)
    assert "Step time" not in text(state)
