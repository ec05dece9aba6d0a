"""The scrape page's server, asked by real clients over real sockets: polite, slow, rude and many."""

import contextlib
import gzip
import http.client
import logging
import os
import pathlib
import signal
import socket
import ssl
import threading
import time

import pytest
from prometheus_client.parser import text_string_to_metric_families

from otel_training import catalog
from otel_training.http_listener import MAX_CONNECTIONS
from otel_training.prometheus import RunCollector
from otel_training.scrape_server import ScrapeServer
from otel_training.state import State

CERTIFICATE = pathlib.Path(__file__).with_name("localhost.pem")  # for 127.0.0.1, signed by itself, until 2125
FORKS = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
LONG_S = 20.0  # a limit for what should happen at once


@pytest.fixture
def state():
    state = State()
    state.set(catalog.LOSS, 1.5)
    return state


@pytest.fixture
def make(state):
    """Make servers on free ports; what a test leaves open is closed."""
    servers = []

    def make(collector=None, landing=lambda address: f"<p>{address}</p>", **settings):
        collector = collector or RunCollector(state, ("run", "name", "0"))
        servers.append(ScrapeServer(collector, landing, **{"port": 0, **settings}))
        return servers[-1]

    yield make
    for server in servers:
        server.close()


@pytest.fixture
def server(make):
    server = make()
    assert server.start()
    return server


def ask(server, path="/metrics", method="GET", host="127.0.0.1", **headers):
    """Return status, headers and body."""
    client = http.client.HTTPConnection(host, server.port, timeout=LONG_S)
    with contextlib.closing(client):
        client.request(
            method, path, headers={name.replace("_", "-"): value for name, value in headers.items()}
        )
        reply = client.getresponse()
        return reply.status, reply.headers, reply.read()


def loss(server, **options):
    status, _, body = ask(server, **options)
    assert status == 200
    families = {family.name: family for family in text_string_to_metric_families(body.decode())}
    return families["training_loss"].samples[0].value


def send(server, data):
    """Return all that the server says to these bytes."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=LONG_S) as client:
        # The server answers what is too long before it has read all of it, and goes.
        with contextlib.suppress(OSError):
            client.sendall(data)
            client.shutdown(socket.SHUT_WR)
        return read_all(client)


def read_all(client):
    said = b""
    with contextlib.suppress(ConnectionResetError):  # comes after what was said
        while piece := client.recv(65536):
            said += piece
    return said


def eventually(condition):
    deadline_s = time.monotonic() + LONG_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def server_threads():
    return [
        thread
        for thread in threading.enumerate()
        if "scrape" in thread.name or "process_request" in thread.name
    ]


def messages(caplog):
    return [record.getMessage() for record in caplog.records]


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


# --- pages ---


def test_metrics_are_served_at_the_url(server):
    assert server.url == f"http://127.0.0.1:{server.port}/metrics"
    status, headers, body = ask(server)
    assert (status, headers["Content-Type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert b'training_loss{training_rank="0",training_run_id="run",training_run_name="name"} 1.5\n' in body


def test_each_scrape_shows_the_numbers_of_its_moment(server, state):
    assert loss(server) == 1.5
    state.set(catalog.LOSS, 1.25)
    assert loss(server) == 1.25


def test_openmetrics_is_served_on_request(server):
    _, headers, body = ask(server, Accept="application/openmetrics-text; version=1.0.0")
    assert headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
    assert body.endswith(b"# EOF\n")


def test_bodies_are_compressed_for_clients_that_accept_it(server):
    _, headers, body = ask(server, Accept_Encoding="gzip")
    assert headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(body) == ask(server)[2]
    assert ask(server)[1]["Content-Encoding"] is None


def test_the_landing_page_is_told_where_it_is(server):
    status, headers, body = ask(server, "/")
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert body == f"<p>http://127.0.0.1:{server.port}</p>".encode()


def test_health_is_ok(server):
    assert ask(server, "/healthz")[::2] == (200, b"ok\n")


def test_a_query_does_not_change_the_page(server):
    assert ask(server, "/metrics?x=1&y")[::2] == ask(server)[::2]


@pytest.mark.parametrize("path", ["/", "/metrics", "/healthz", "/nothing"])
def test_head_is_get_without_the_body(server, path):
    status, headers, body = ask(server, path, "HEAD")
    assert (status, body) == (ask(server, path)[0], b"")
    assert int(headers["Content-Length"]) == len(ask(server, path)[2])


@pytest.mark.parametrize(
    "path",
    ["/nothing", "/metrics/", "/../etc/passwd", "/%2e%2e/", "/metrics%00", "*", "http://other/metrics"],
)
def test_other_paths_are_not_found(server, path):
    status, headers, body = ask(server, path)
    assert (status, headers["Content-Type"]) == (404, "text/plain; charset=utf-8")
    assert b"/metrics" in body


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT", "get"])
def test_other_methods_are_not_allowed(server, method):
    status, headers, body = ask(server, "/metrics", method)
    assert (status, headers["Allow"]) == (405, "GET, HEAD")
    assert body == b"method not allowed: GET and HEAD are\n"


def test_a_body_that_is_not_wanted_does_not_reset_the_answer(server):
    with socket.create_connection(("127.0.0.1", server.port), timeout=LONG_S) as client:
        client.sendall(b"POST /metrics HTTP/1.1\r\nContent-Length: 30000\r\n\r\n")
        client.sendall(b"x" * 30000)
        assert read_all(client).startswith(b"HTTP/1.1 405 ")


def test_the_software_is_named_without_versions(server):
    assert ask(server)[1]["Server"] == "otel-training"


def test_a_page_that_fails_is_a_short_500_and_one_log_line(make, caplog, capfd):
    def broken(address):
        raise RuntimeError("no landing today")

    server = make(landing=broken)
    server.start()
    for _ in range(3):
        status, _, body = ask(server, "/")
        assert status == 500
        assert b"Traceback" not in body
    assert loss(server) == 1.5
    assert len(caplog.records) == 1
    assert "no landing today" in caplog.text
    assert capfd.readouterr() == ("", "")


# --- rude clients ---


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b"400"),  # a TLS hello
        (b"\x00\xff" * 500 + b"\r\n\r\n", b"400"),
        (b"GET\r\n\r\n", b"400"),
        (b"GET /metrics HTTP/x\r\n\r\n", b"400"),
        (b"GET /metrics HTTP/2.0\r\n\r\n", b"505"),
        (b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n\r\n", b"431"),
        (b"GET / HTTP/1.1\r\nCookie: " + b"a" * 20_000 + b"\r\n\r\n", b"431"),
        (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 150 + b"\r\n", b"431"),
        (b"GET / HTTP/1.1\r\n" + b"a" * 200_000, b"431"),
        (b"GET /healthz HTTP/1.1\r\nno colon here\r\n\r\n", b"200"),
        (b"GET /healthz HTTP/1.1\n\n", b"200"),
        (b"GET /healthz HTTP/1.0\r\n\r\n", b"200"),
        (b"GET /healthz HTTP/1.1\r\nConnection: keep-alive\r\n\r\n", b"200"),
    ],
)
def test_garbage_gets_a_short_plain_answer(server, data, status, capfd):
    said = send(server, data)
    assert said.startswith(b"HTTP/1.1 " + status)
    assert b"\r\nContent-Type: text/plain; charset=utf-8\r\n" in said
    assert len(said) < 500
    assert ask(server, "/healthz")[0] == 200
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("data", [b"", b"\r\n\r\n", b"\r\n"])
def test_a_client_that_asks_for_nothing_gets_nothing(server, data):
    assert send(server, data) == b""


def test_an_accept_header_cannot_write_headers_of_the_answer(server):
    said = send(
        server,
        b"GET /metrics HTTP/1.1\r\nAccept: application/openmetrics-text;version=1.0\r\n Evil: 1\r\n\r\n",
    )
    assert said.startswith(b"HTTP/1.1 200 ")
    assert b"Evil" not in said


def test_clients_that_go_away_in_the_middle_are_not_mentioned(make, caplog, capfd):
    server = make(landing=lambda address: "x" * 30_000_000)
    server.start()
    for _ in range(5):
        with socket.create_connection(("127.0.0.1", server.port), timeout=LONG_S) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")  # close resets
            client.sendall(b"GET / HTTP/1.1\r\n\r\n")
            client.recv(10)
    eventually(lambda: len(server_threads()) == 1)
    assert ask(server, "/healthz")[0] == 200
    assert messages(caplog) == []
    assert capfd.readouterr() == ("", "")


def test_a_client_that_dribbles_its_request_is_cut_off_while_others_are_served(make):
    server = make(client_timeout_s=0.5)
    server.start()
    with socket.create_connection(("127.0.0.1", server.port), timeout=LONG_S) as client:
        cut_off = False
        for _ in range(400):
            try:
                client.sendall(b"G")
                client.settimeout(0.05)
                cut_off = client.recv(1) == b""
            except TimeoutError:
                assert ask(server, "/healthz")[0] == 200
                continue
            except OSError:
                cut_off = True
            break
    assert cut_off


def test_a_client_that_does_not_read_its_answer_is_cut_off(make):
    server = make(landing=lambda address: "x" * 30_000_000, client_timeout_s=0.3)
    server.start()
    with socket.create_connection(("127.0.0.1", server.port), timeout=LONG_S) as client:
        client.sendall(b"GET / HTTP/1.1\r\n\r\n")
        eventually(lambda: len(server_threads()) == 2)
        eventually(lambda: len(server_threads()) == 1)


def test_connections_beyond_the_bound_are_refused_and_served_again_later(server):
    with contextlib.ExitStack() as idle:
        for _ in range(MAX_CONNECTIONS):
            idle.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=LONG_S))
        eventually(lambda: len(server_threads()) == MAX_CONNECTIONS + 1)
        for _ in range(3 * MAX_CONNECTIONS):
            status, _, body = ask(server)
            assert (status, body) == (503, b"too many connections\n")
        assert len(server_threads()) == MAX_CONNECTIONS + 1
    eventually(lambda: len(server_threads()) == 1)
    assert loss(server) == 1.5


def test_many_scrapers_see_whole_events_that_only_grow(server, state):
    state.set(catalog.STEPS, 0)
    state.set(catalog.TOKENS, 0)
    stop, wrong, scrapes = threading.Event(), [], []

    def train():
        while not stop.is_set():
            with state.lock:
                state.add(catalog.STEPS, 1)
                state.observe(catalog.STEP_DURATION, 0.01)
                state.add(catalog.NONFINITE_VALUES, 1, f"field-{len(scrapes)}", "nan")
                state.add(catalog.TOKENS, 10)

    def scrape():
        last = -1.0
        for _ in range(10):
            status, _, body = ask(server)
            families = {family.name: family for family in text_string_to_metric_families(body.decode())}
            steps, tokens = (
                families[name].samples[0].value for name in ("training_steps", "training_tokens")
            )
            durations = families["training_step_duration_seconds"].samples if steps else []
            counted = sum(sample.value for sample in durations if sample.name.endswith("_count"))
            if status != 200 or tokens != 10 * steps or counted != steps or steps < last:
                wrong.append((status, last, steps, tokens, counted))
            last = steps
            scrapes.append(steps)

    trainer = threading.Thread(target=train)
    scrapers = [threading.Thread(target=scrape) for _ in range(20)]
    for thread in (trainer, *scrapers):
        thread.start()
    for thread in scrapers:
        thread.join()
    stop.set()
    trainer.join()
    assert wrong == []
    assert len(scrapes) == 200
    assert len(set(scrapes)) > 1


# --- addresses, ports ---


def test_nothing_is_served_before_the_start(make):
    server = make()
    assert (server.url, server.address, server.port) == (None, None, None)
    assert server.wait_for_scrape(LONG_S) is False
    server.close()


def test_a_second_start_changes_nothing(server):
    port = server.port
    assert server.start()
    assert server.port == port


def test_localhost_means_ipv4(make):
    server = make(host="localhost")
    server.start()
    assert server.url == f"http://127.0.0.1:{server.port}/metrics"
    assert loss(server) == 1.5


def test_ipv6(make, caplog):
    server = make(host="::1")
    assert server.start()
    assert server.url == f"http://[::1]:{server.port}/metrics"
    assert loss(server, host="::1") == 1.5
    assert messages(caplog) == []


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_all_addresses_are_one_warning_and_a_name_that_others_can_use(make, host, caplog):
    server = make(host=host)
    assert server.start()
    assert loss(server) == 1.5
    assert server.address == f"http://{socket.gethostname()}:{server.port}"
    assert len(caplog.records) == 1
    assert f"listens on {'[::]' if host == '::' else host} without TLS" in caplog.text


def test_a_port_that_is_taken_is_one_warning_and_the_next_port(make, state, caplog):
    first = make(port=free_port())
    assert first.start()
    state_of_second = State()
    state_of_second.set(catalog.LOSS, 9.0)
    second = make(RunCollector(state_of_second, ("other", "other", "0")), port=first.port)
    assert second.start()
    assert first.port < second.port <= first.port + 100
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert str(first.port) in caplog.text
    assert str(second.port) in caplog.text
    assert (loss(first), loss(second)) == (1.5, 9.0)


def test_the_port_can_be_bound_again_at_once_just_after_a_scrape(make):
    first = make()
    first.start()
    port = first.port
    for _ in range(3):
        assert loss(first) == 1.5
    first.close()
    again = make(port=port)
    assert again.start()
    assert again.port == port
    assert loss(again) == 1.5


def test_no_free_port_is_one_warning_and_no_server(make, caplog):
    taken = make()
    taken.start()
    server = make(port=taken.port, next_ports=0)
    assert server.start() is False
    assert (server.url, server.port) == (None, None)
    assert len(caplog.records) == 1
    assert f"no scrape page, training goes on: 127.0.0.1, ports {taken.port} to {taken.port}" in caplog.text


def test_an_address_of_another_machine_is_one_warning_and_no_server(make, caplog):
    server = make(host="192.0.2.1", port=9464)
    assert server.start() is False
    assert len(caplog.records) == 1
    assert "192.0.2.1" in caplog.text


def test_the_last_port_has_no_next_one(make):
    server = make(port=65535, next_ports=100)
    server.start()
    assert server.port in (65535, None)


@pytest.mark.parametrize("port", [-1, 65536, 9464.0, "9464", None, True])
def test_a_port_out_of_range_names_the_setting(make, port):
    with pytest.raises(
        ValueError, match=r"prometheus_port \(OTEL_EXPORTER_PROMETHEUS_PORT\) is .*0 .* 65535"
    ):
        make(port=port)


@pytest.mark.parametrize(
    "host", ["", "127.0.0.1:9464", "[::1]", "no such host", "a..b", "\udcff", "a\0b", None, 5]
)
def test_a_bad_host_names_the_setting(make, host):
    with pytest.raises(
        ValueError, match=r"prometheus_host \(OTEL_EXPORTER_PROMETHEUS_HOST\) is .*accepted is"
    ):
        make(host=host)


def test_a_negative_number_of_next_ports_is_refused(make):
    with pytest.raises(ValueError, match="next_ports is -1"):
        make(next_ports=-1)


def test_tls(make):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    server = make(tls=context, client_timeout_s=1.0)
    server.start()
    assert server.url == f"https://127.0.0.1:{server.port}/metrics"
    trusting = ssl.create_default_context(cafile=str(CERTIFICATE))
    with socket.create_connection(("127.0.0.1", server.port), timeout=LONG_S) as silent:
        client = http.client.HTTPSConnection("127.0.0.1", server.port, timeout=LONG_S, context=trusting)
        with contextlib.closing(client):
            client.request("GET", "/healthz")
            assert client.getresponse().read() == b"ok\n"
        assert silent.recv(1) == b""  # no handshake in time
    assert send(server, b"GET / HTTP/1.1\r\n\r\n")[:4] != b"HTTP"


# --- life and death ---


def test_close_leaves_no_thread_and_no_socket(make):
    sockets_before = open_sockets()
    server = make()
    server.start()
    for _ in range(5):
        loss(server)
    server.close()
    assert server_threads() == []
    assert open_sockets() == sockets_before
    assert server.url is None
    server.close()


def test_close_cuts_a_client_that_hangs(make):
    server = make(client_timeout_s=3600.0)
    server.start()
    with socket.create_connection(("127.0.0.1", server.port), timeout=LONG_S) as client:
        client.sendall(b"GET /metr")
        eventually(lambda: len(server_threads()) == 2)
        server.close()
        assert read_all(client) == b""
    assert server_threads() == []


def test_close_lets_an_answer_in_progress_finish(make):
    inside = threading.Event()
    closing = threading.Event()

    def slow(address):
        inside.set()
        closing.wait(LONG_S)
        return "finished"

    server = make(landing=slow)
    server.start()
    with socket.create_connection(("127.0.0.1", server.port), timeout=LONG_S) as client:
        client.sendall(b"GET / HTTP/1.1\r\n\r\n")
        inside.wait(LONG_S)
        closer = threading.Thread(target=server.close)
        closer.start()
        eventually(lambda: server.url is None)
        closing.set()
        assert read_all(client).endswith(b"finished")
        closer.join()


def test_a_closed_server_can_be_started_again(make):
    server = make()
    for _ in range(2):
        assert server.start()
        assert loss(server) == 1.5
        server.close()


def test_waiting_for_a_scrape_ends_with_one_that_began_later(server):
    loss(server)  # an earlier one does not count
    assert server.wait_for_scrape(0.05) is False
    results = []
    waiter = threading.Thread(target=lambda: results.append(server.wait_for_scrape(LONG_S)))
    waiter.start()
    while waiter.is_alive():
        loss(server)
    assert results == [True]


def test_waiting_does_not_end_with_a_scrape_that_had_begun(make):
    leave = [threading.Event(), threading.Event()]
    inside = []

    class SlowCollector:
        def collect(self):
            inside.append(None)
            leave[len(inside) - 1].wait(LONG_S)
            return []

    server = make(SlowCollector())
    server.start()
    early, late = (threading.Thread(target=ask, args=(server,)) for _ in range(2))
    results = []
    waiter = threading.Thread(target=lambda: results.append(server.wait_for_scrape(1.0)))
    early.start()
    eventually(lambda: len(inside) == 1)
    waiter.start()
    time.sleep(0.1)  # the wait has begun
    late.start()
    eventually(lambda: len(inside) == 2)
    leave[0].set()
    early.join()
    waiter.join()
    leave[1].set()
    late.join()
    assert results == [False]


def test_waiting_is_for_scrapes_only(server):
    stop = threading.Event()

    def look_around():
        while not stop.is_set():
            ask(server, "/")
            ask(server, "/metrics", "HEAD")

    visitor = threading.Thread(target=look_around)
    visitor.start()
    assert server.wait_for_scrape(0.3) is False
    stop.set()
    visitor.join()


def test_close_ends_the_wait(server):
    closer = threading.Timer(0.1, server.close)
    closer.start()
    assert server.wait_for_scrape(LONG_S) is False
    closer.join()


# --- fork ---


def open_sockets():
    links = []
    for descriptor in pathlib.Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            links.append(str(descriptor.readlink()))
    return sorted(link for link in links if link.startswith("socket:"))


def in_child(function):
    """Fork; return what ``function`` says in the child, and a call that ends the child."""
    from_child, to_parent = os.pipe()
    from_parent, to_child = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(int(LONG_S))  # a child that hangs must not outlive the test
        os.close(to_child)
        try:
            os.write(to_parent, repr(function()).encode())
            os.read(from_parent, 1)  # live on until the parent has looked
        finally:
            os._exit(0)
    os.close(to_parent)
    os.close(from_parent)
    said = os.read(from_child, 10_000).decode()
    os.close(from_child)

    def end():
        os.close(to_child)
        os.waitpid(pid, 0)

    return said, end


@FORKS
def test_a_child_drops_the_port_and_the_parent_serves_on(make):
    sockets_before = open_sockets()
    server = make()
    server.start()
    port = server.port

    def child():
        server.abandon_in_child()
        server.close()
        return server.url, server.wait_for_scrape(LONG_S), open_sockets() == sockets_before

    said, end = in_child(child)
    try:
        assert said == "(None, False, True)"
        assert loss(server) == 1.5
        server.close()
        again = make(port=port, next_ports=0)
        assert again.start()  # while the child lives
        assert loss(again) == 1.5
    finally:
        end()


@FORKS
def test_a_child_that_closes_what_it_inherited_does_not_hang_or_disturb(make):
    server = make()
    server.start()
    with socket.create_connection(("127.0.0.1", server.port), timeout=LONG_S) as client:
        client.sendall(b"GET /heal")
        eventually(lambda: len(server_threads()) == 2)
        said, end = in_child(lambda: server.close() or "closed")
        try:
            assert said == "'closed'"
            client.sendall(b"thz HTTP/1.1\r\n\r\n")
            assert read_all(client).endswith(b"ok\n")
            assert loss(server) == 1.5
        finally:
            end()
