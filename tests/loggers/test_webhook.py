"""Tests of Webhook, which posts to a server of the standard library."""

import contextlib
import http.server
import itertools
import json
import math
import os
import signal
import socket
import threading

import pytest

from learner.events import Message, MetricInfo, RunEnded, RunFailed
from learner.loggers import MemoryLogger, Webhook
from tests.support.codes import named_case, raises_code
from tests.support.logged import ended, split, started, steps
from tests.support.runs import batches, build_line, quiet

INFOS = (
    MetricInfo("train", "Loss", higher_is_better=False),
    MetricInfo("valid", "Loss", higher_is_better=False),
    MetricInfo("valid", "Accuracy", higher_is_better=True),
)


@pytest.fixture
def server(monkeypatch):
    """Yield a local server that records its requests; `answers` are its next status codes."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            content = self.rfile.read(int(self.headers["Content-Length"]))
            httpd.posts.append((self.path, dict(self.headers), json.loads(content)))
            self.send_response(httpd.answers.pop(0) if httpd.answers else 200, httpd.reason)
            if httpd.points_to:
                self.send_header("Location", httpd.points_to)
            self.end_headers()

        def do_GET(self):
            httpd.gets.append(self.path)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as httpd:
        httpd.posts, httpd.gets, httpd.answers, httpd.points_to, httpd.reason = [], [], [], None, None
        httpd.url = f"http://127.0.0.1:{httpd.server_port}/hook?key=secret"
        thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield httpd
        httpd.shutdown()
        thread.join()


def posts_to(server):
    return [content for _, _, content in server.posts]


def play(logger, *events):
    for event in events:
        logger.on_event(event)


def begin(directory, **others):
    return started(directory, metrics=INFOS, monitor="valid/Loss", **others)


def test_posts_of_a_run(server, tmp_path):
    first = split("valid", 3, {"Loss": 0.5, "Accuracy": 0.9})
    worse = split("valid", 6, {"Loss": 0.6, "Accuracy": 0.95}, epoch=2)
    better = split("valid", 9, {"Loss": 0.25, "Accuracy": 0.1}, epoch=3)
    play(Webhook(server.url), begin(tmp_path), steps(1, 1.0), split("train", 3, {"Loss": 0.1}), first, worse, better)
    play(Webhook(server.url), begin(tmp_path), ended(9))
    best = {"event": "best", "time": 0.0, "directory": str(tmp_path), "metric": "valid/Loss"}
    assert posts_to(server)[:2] == [
        {**best, "epoch": 1, "step": 3, "value": 0.5, "before": None},
        {**best, "epoch": 3, "step": 9, "value": 0.25, "before": 0.5},
    ]
    (end,) = posts_to(server)[2:]
    assert (end["event"], end["stopped_by"], end["summary"]["stopped_by"]) == ("end", "num_epochs", "num_epochs")
    path, headers, _ = server.posts[0]
    assert (path, headers["Content-Type"]) == ("/hook?key=secret", "application/json")


@pytest.mark.parametrize(
    ("stopped_by", "event"),
    [
        ("sigterm", "preemption"),
        ("sighup", "preemption"),
        ("time limit", "preemption"),
        ("ctrl-c", "end"),
        ("early stopping: enough", "end"),
    ],
)
def test_preemption_has_its_own_event(server, tmp_path, stopped_by, event):
    play(Webhook(server.url), begin(tmp_path), RunEnded(9.0, 1, 3, stopped_by, {}, 8.0, False))
    assert [post["event"] for post in posts_to(server)] == [event]


def test_failures_and_starts(server, tmp_path):
    facts = {"config": {"lr": float("inf")}, "commit": "abc", "environment": {"jax": "0.10"}}
    logger = Webhook(server.url, on=["start", "failure"], headers={"Authorization": "Bearer x"})
    play(logger, begin(tmp_path, **facts), split("valid", 3, {"Loss": 0.5}), RunFailed(2.0, 1, 3, "ValueError('no')"))
    start, failure = posts_to(server)
    assert {key: start[key] for key in facts} == {**facts, "config": {"lr": "Infinity"}}
    assert (failure["error"], failure["epoch"], failure["step"]) == ("ValueError('no')", 1, 3)
    assert server.posts[0][1]["Authorization"] == "Bearer x"


def test_best_values_include_earlier_starts(server, tmp_path):
    """Each metric has its direction; NaN and values worse than an earlier start's best are not best."""
    logger = Webhook(server.url, monitors=["valid/Accuracy", "valid/Loss"])
    history = {"valid/Accuracy": [(1, 3, 0.7), (2, 6, float("nan")), (3, 9, 0.6)]}
    values = [{"Accuracy": 0.65, "Loss": float("nan")}, {"Accuracy": 0.7}, {"Accuracy": 0.8, "Loss": 2.0}]
    play(logger, begin(tmp_path, step=9, history=history))
    play(logger, *(split("valid", 12 + i, value) for i, value in enumerate(values)))
    assert [(post["metric"], post["value"], post["before"]) for post in posts_to(server)] == [
        ("valid/Accuracy", 0.8, 0.7),
        ("valid/Loss", 2.0, None),
    ]


@pytest.mark.full
@pytest.mark.usefixtures("compiled_once")
def test_preempted_and_resumed_run(server, tmp_path):
    """The resumed run posts the best value of the first as `before`."""

    def build():
        builder = quiet(tmp_path / "run", saves=True).num_epochs(2).on_sigterm("return").resume()
        return builder.metric_loggers(Webhook(server.url, on=["start", "best", "end", "preemption"]))

    kill = lambda info, model: os.kill(os.getpid(), signal.SIGTERM) if info.step == 8 else None  # noqa: E731
    build_line(build().every(1, kill)).fit(batches())
    build_line(build()).fit(batches())
    posts = posts_to(server)
    assert [post["event"] for post in posts] == ["start", "best", "preemption", "start", "best", "end"]
    assert [post["resumed"] for post in posts if post["event"] == "start"] == [False, True]
    first, second = (post for post in posts if post["event"] == "best")
    assert (first["metric"], first["step"], second["before"]) == ("train/Loss", 6, first["value"])
    assert posts[-1]["summary"].pop("seconds")["total"] > 0  # only in the post: the file has no times
    assert posts[-1]["summary"] == json.loads((tmp_path / "run" / "summary.json").read_text())


@pytest.mark.parametrize("code", [429, 500, 503])
def test_transient_errors_are_retried(server, tmp_path, code):
    pauses = []
    server.answers += [code, code]
    play(Webhook(server.url, sleep=pauses.append), begin(tmp_path), ended(3))
    assert pauses == [1.0, 2.0]
    assert [post["event"] for post in posts_to(server)] == ["end"] * 3


def test_refused_post_raises_without_secrets(server, tmp_path):
    server.answers += [404]
    with raises_code("logger-post-refused", "http://127.0.0.1:", "404 Not Found") as refused:
        play(Webhook(server.url, sleep=lambda s: pytest.fail("tried again")), begin(tmp_path), ended(3))
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_redirects_are_not_followed(server, tmp_path, code):
    """The content would be lost, and the headers would go to another server."""
    server.answers, server.points_to = [code], f"http://localhost:{server.server_port}/secret"
    logger = Webhook(server.url, headers={"Authorization": "secret"}, sleep=lambda s: pytest.fail("tried again"))
    with raises_code("logger-post-refused", f"answered {code}", "points to http://localhost:") as refused:
        play(logger, begin(tmp_path), ended(3))
    assert "secret" not in str(refused.value)
    assert (len(server.posts), server.gets) == (1, [])


@pytest.mark.parametrize(
    ("where", "shown"),
    [("/secret", "http://127.0.0.1:"), ("http://[secret", "another place"), ("file:///secret", "another place")],
)
def test_redirect_targets_are_shown_without_secrets(server, tmp_path, where, shown):
    server.answers, server.points_to = [302], where
    with raises_code("logger-post-refused", f"points to {shown}") as refused:
        play(Webhook(server.url), begin(tmp_path), ended(3))
    assert "secret" not in str(refused.value)


def test_malformed_addresses_and_headers_are_refused_without_secrets():
    cases = [
        ({"url": "http://127.0.0.1:1/hook", "on": None}, "logger-arguments-wrong", ["on of Webhook is None"]),
        ({"url": "http://me:secret@127.0.0.1:1/hook"}, "logger-arguments-wrong", []),
        ({"url": "http://secret@127.0.0.1:1/hook"}, "logger-arguments-wrong", []),
        (
            {"url": "http://127.0.0.1:1/h\u00f6\u00f6k/secret"},
            "logger-arguments-wrong",
            ["ASCII"],
        ),
        ({"headers": {"Authorization": "Bearer secret\n"}}, "logger-arguments-wrong", ["'Authorization'"]),
        ({"headers": {"X-Key": "secret\x00"}}, "logger-arguments-wrong", ["'X-Key'"]),
        ({"headers": {"X-Key": "secret\u20ac"}}, "logger-arguments-wrong", ["'X-Key'"]),
        ({"headers": {"X-Key": b"secret"}}, "logger-arguments-wrong", ["'X-Key'"]),
        ({"headers": {"X-Key": None}}, "logger-arguments-wrong", ["'X-Key'", "NoneType"]),
        ({"headers": {"Authorization: Bearer secret": ""}}, "logger-arguments-wrong", ["'s name begins with '"]),
        ({"headers": {"": "secret"}}, "logger-arguments-wrong", []),
        ({"headers": {5: "secret"}}, "logger-arguments-wrong", []),
        ({"headers": ["secret"]}, "logger-arguments-wrong", []),
        ({"headers": {"A": 1, "B": "secret\r"}}, "logger-arguments-wrong", ["'A'", "'B'"]),
    ]
    for options, code, shown in cases:
        with named_case((options, code, shown)):
            with raises_code(code, *shown) as refused:
                Webhook(**{"url": "http://127.0.0.1:1", **options})
            assert "secret" not in str(refused.value)


def test_headers_that_can_be_sent(server, tmp_path):
    headers = {"X_a-1": "", "X-Tab": "a\tb", "X-Latin": "\u00e4"}
    play(Webhook(server.url, headers=headers), begin(tmp_path), ended(3))
    got = {name.lower(): value for name, value in server.posts[0][1].items()}
    assert {name: got[name.lower()] for name in headers} == headers


@contextlib.contextmanager
def endless(pieces):
    """Yield the address of a server that sends these pieces, the last one repeatedly until the client hangs up, and an
    event that is set then.
    """
    hung_up = threading.Event()

    def answer(server):
        with contextlib.suppress(OSError):
            while True:
                connection, _ = server.accept()
                with connection, contextlib.suppress(OSError):
                    connection.recv(2**16)
                    for piece in itertools.chain(pieces, itertools.repeat(pieces[-1]) if pieces else ()):
                        connection.sendall(piece)
                    while connection.recv(2**16):
                        pass
                hung_up.set()

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=answer, args=(server,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}/hook", hung_up
        server.shutdown(socket.SHUT_RDWR)
    thread.join(30)
    assert not thread.is_alive()


def test_endless_answer_is_not_read(monkeypatch, tmp_path):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with endless([b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 2**16]) as (url, hung_up):
        play(Webhook(url), begin(tmp_path), ended(3))
        assert hung_up.wait(30)


@pytest.mark.parametrize("pieces", [[b"HTTP/1.1 100 Continue\r\n\r\n"], []], ids=["goes on and on", "silent"])
def test_answer_that_does_not_begin_times_out(monkeypatch, tmp_path, pieces):
    """A socket's timeout restarts with each piece; the limit is on the whole answer. The second server is silent."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with endless(pieces) as (url, _), raises_code("logger-post-failed"):
        play(Webhook(url, timeout=0.2, retries=0), begin(tmp_path), ended(3))


def test_a_long_reason_is_cut(server, tmp_path):
    server.answers, server.reason = [404], "no " * 10_000
    with raises_code("logger-post-refused", "404 no no") as refused:
        play(Webhook(server.url), begin(tmp_path), ended(3))
    assert len(str(refused.value)) < 200


def test_unreachable_server_is_retried(server, tmp_path):
    url, pauses = server.url, []
    server.shutdown()
    server.server_close()
    with raises_code("logger-post-failed"):
        play(Webhook(url, retries=2, sleep=pauses.append), begin(tmp_path), ended(3))
    assert pauses == [1.0, 2.0]


@pytest.mark.usefixtures("compiled_once")
def test_run_with_an_unreachable_server_warns_once(server, tmp_path):
    url, memory = server.url, MemoryLogger()
    server.shutdown()
    server.server_close()
    webhook = Webhook(url, on=["start", "best", "end"], retries=0)
    result = build_line(quiet(tmp_path / "run").metric_loggers(webhook, memory).num_epochs(2)).fit(batches())
    assert result.stopped_by == "num_epochs"
    (warning,) = memory.of(Message)
    assert warning.text.startswith("Webhook failed and is detached; training continues: ")
    assert "secret" not in warning.text
    assert memory.history == result.history


@pytest.mark.parametrize(
    ("options", "code", "shown"),
    [
        ({"url": "example.org/hook"}, "logger-address-malformed", []),
        ({"on": ["ends"]}, "logger-arguments-wrong", ["'ends'", "'end'"]),
        ({"on": "bset"}, "logger-arguments-wrong", ["'bset'", "'best'"]),
        ({"timeout": 0}, "logger-arguments-wrong", ["is 0"]),
        ({"timeout": math.inf}, "logger-arguments-wrong", ["is inf"]),
        ({"retries": -1}, "retries-value", ["is -1"]),
    ],
    ids=str,
)
def test_wrong_options_are_refused(options, code, shown):
    with raises_code(code, *shown):
        Webhook(**{"url": "http://127.0.0.1:1", **options})


def test_all_missing_variables_are_named_at_once():
    with raises_code("logger-environment-missing", "NO_HOST", "NO_TOKEN"):
        Webhook("https://${env:NO_HOST}/x", headers={"Authorization": "${env:NO_TOKEN}"})
