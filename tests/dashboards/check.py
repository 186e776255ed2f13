"""Runs each query of the dashboard and each rule in a real Prometheus; see tests/dashboards/run."""

import concurrent.futures
import http.client
import json
import math
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request

from servers import Server

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PROMETHEUS = ROOT / "conf" / "prometheus"
DASHBOARD = ROOT / "conf" / "grafana" / "tidegate.json"
READY_SECONDS = 30
# How long a rule may take to notice; it is evaluated each second.
RULES_SECONDS = 10
# How long the load runs before the queries, and at the longest on a slow machine: what is rarest must have happened twice,
# so that `rate` sees it.
LOAD_SECONDS = 45
LONGEST_LOAD_SECONDS = 90
RAREST = 'tidegate_longest_token_gap_seconds_count{length="long",instance="%s"}'
# How often each fault is provoked, so that `rate` sees the counters grow that come into being with the first one.
ROUNDS = 3

# Panels of which the demo has no data, since nothing of theirs happens there. The second Tidegate must have them: its
# servers fail, its clients have keys, its policy has a shadow.
ONLY_AFTER_EVENTS = {
    "API keys",
    "Certificate expires in",
    "Choices of the shadow",
    "Configurations",
    "Ejections",
    "Ejections spared",
    "Failovers",
    "Faults",
    "How waiting ended",
    "KV cache in use",
    "Prompt tokens by API key",
    "Refusals",
    "Refused API keys",
    "Time in the queue",
    "Time in the queue as it falls",
    "Time limits",
    "Would the shadow have agreed",
}

# Alerts that the second Tidegate must cause: those that are for now, of what is done to it.
MUST_FIRE = {"TidegateConfigRefused"}
# And those that wait for their `for`.
MUST_BE_PENDING = {"TidegateCertificateExpires", "TidegateDiscoveryFailed", "TidegateErrorBudgetBurn"}

CONFIGURATION = """\
listen: 127.0.0.1:{port}
tls: {{listen: "127.0.0.1:{tls_port}", certificate: {folder}/tls.crt, key: {folder}/tls.key}}
admin: {{listen: "127.0.0.1:{admin_port}"}}
groups:
  - name: short
    up_to_tokens: 1000
    servers: ["{servers[0]}", "{servers[1]}"]
  - name: long
    up_to_tokens: 100000
    servers: ["{servers[2]}"]
    discover: {{file: {folder}/servers, interval: 1s}}
policy: {{kind: {kind}, shadow: {shadow}}}
timeouts: {{first_byte: 1s}}
retry: {{max_attempts: 2}}
queue: {{max_requests: 2, max_wait: 500ms, server_max_in_flight: 1}}
health:
  active: {{interval: 500ms}}
  passive: {{failures: 2, base_ejection: 1s, max_ejection: 1s}}
  probation: {{successes: 1}}
engines: {{interval: 1s}}
access:
  keys:
    - {{name: team-a, key: sk-a}}
    - {{name: team-b, key: sk-b, requests_per_minute: 1}}
  close_paths: [/closed]
access_log: {{format: json, path: {folder}/access.log}}
"""

problems = []


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    began = time.monotonic()
    tidegate = pathlib.Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory(prefix="tidegate-dashboards-") as folder, Started() as started:
        folder = pathlib.Path(folder)
        promtool("check", "config", PROMETHEUS / "prometheus.yml")
        promtool("check", "rules", PROMETHEUS / "rules.yaml")
        promtool("test", "rules", *sorted(PROMETHEUS.glob("rules*_test.yaml")))

        demo = start_demo(started, tidegate, folder)
        troubled = Troubled(started, tidegate, folder)
        prometheus = Prometheus(started, folder, [demo, troubled.admin])
        await_page(prometheus.address, "/-/ready")
        loaded = time.monotonic()
        troubled.go_through_everything()
        time.sleep(max(0, loaded + LOAD_SECONDS - time.monotonic()))
        prometheus.await_data(f"rate({RAREST % demo}[15s]) > 0", loaded + LONGEST_LOAD_SECONDS)

        for admin in [demo, troubled.admin]:
            check_metrics(admin)
        prometheus.check_targets()
        check_dashboard(prometheus, demo, troubled.admin)
        prometheus.check_rules()
    print(f"{round(time.monotonic() - began)} s")
    if problems:
        print(f"{len(problems)} problems:", *problems, sep="\n- ")
        sys.exit(1)
    print("all passed")


class Started:
    """What was started, and is ended whatever happens."""

    def __init__(self):
        self.processes = []

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        for process, log in reversed(self.processes):
            if process.poll() is not None:
                problems.append(f"{process.args[0]} had ended by itself, with code {process.returncode}")
            process.send_signal(signal.SIGINT)  # Tidegate ends at once, Prometheus gently.
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if kind or problems:
                lines = log.read_text(errors="replace").splitlines()
                print(f"--- the last of {len(lines)} lines of {log.name} ---", *lines[-30:], sep="\n")

    def start(self, log, *command):
        print("starting", *command, flush=True)
        with log.open("w") as out:
            process = subprocess.Popen(
                list(map(str, command)), stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )
        self.processes.append((process, log))
        return process


def start_demo(started, tidegate, folder):
    """A demo under load; returns the address of its admin listener."""
    port, admin_port, *server_ports = free_ports(6)
    flags = ["--load", "--port", port, "--admin-port", admin_port, "--server-ports", *server_ports]
    started.start(folder / "demo.log", tidegate, "demo", *flags)
    await_page(f"127.0.0.1:{admin_port}", "/readyz")
    return f"127.0.0.1:{admin_port}"


class Troubled:
    """A Tidegate to which everything happens that the demo is spared."""

    def __init__(self, started, tidegate, folder):
        port, tls_port, admin_port, *server_ports = free_ports(6)
        self.folder = folder
        self.servers = [Server(port) for port in server_ports]
        self.address, self.admin = f"127.0.0.1:{port}", f"127.0.0.1:{admin_port}"
        self.ports = {"port": port, "tls_port": tls_port, "admin_port": admin_port}
        (folder / "servers").touch()
        certificate = ["-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
        files = ["-keyout", folder / "tls.key", "-out", folder / "tls.crt"]
        subprocess.run(["openssl", "req", *certificate, *files], check=True, capture_output=True)
        self.configure("lanes", "reference_bucket")
        self.process = started.start(folder / "troubled.log", tidegate, "--conf", folder / "tidegate.yaml")
        await_page(self.admin, "/readyz")

    def configure(self, kind, shadow):
        names = [server.name for server in self.servers]
        text = CONFIGURATION.format(folder=self.folder, servers=names, kind=kind, shadow=shadow, **self.ports)
        (self.folder / "tidegate.yaml").write_text(text)

    def go_through_everything(self):
        for kind, shadow in [("lanes", "reference_bucket"), ("reference_bucket", "lanes")]:
            self.configure(kind, shadow)
            self.admin_post("/reload")
            for _ in range(ROUNDS):
                self.go_round()
        # What is left standing: a source of servers that is gone, and a file that cannot be run.
        (self.folder / "servers").unlink()
        time.sleep(3)
        (self.folder / "tidegate.yaml").write_text("groups: [")
        self.process.send_signal(signal.SIGHUP)

    def go_round(self):
        self.ask("short", "long")
        self.ask(*["short"] * 8)  # more than run and wait: the queue
        self.ask("short", "short", key="sk-b")
        self.ask("short", key="sk-a", path="/closed")
        for mode in ["500", "502", "503", "close", "break", "silent"]:
            # One of two: retries, ejections. Then both: what max_ejected_share spares.
            for servers in [self.servers[:1], self.servers]:
                for server in servers:
                    server.mode = mode
                self.ask("short")
                self.ask("short", "long", "short")
                for server in servers:
                    server.mode = "well"
            time.sleep(0.2)
        for action in ["drain", "undrain"]:
            for server in self.servers[:2]:
                self.admin_post(f"/{action}?server={urllib.parse.quote(server.name)}")
            self.ask("short", "short")
        time.sleep(1.2)  # ejections end

    def ask(self, *lengths, key="sk-a", path="/v1/chat/completions"):
        """Sends requests at once and waits for what becomes of them, whatever that is."""
        with concurrent.futures.ThreadPoolExecutor(len(lengths)) as pool:
            list(pool.map(lambda length: self.ask_one(length, key, path), lengths))

    def ask_one(self, length, key, path):
        # Words that are no other request's: nothing is taken for cached.
        words = " ".join(random.choices(["tide", "gate", "harbour", "ebb", "flow"], k=20 if length == "short" else 9000))
        body = {
            "model": "m",
            "stream": True,
            "stream_options": {"include_usage": True},
            "messages": [{"role": "user", "content": words}],
        }
        connection = http.client.HTTPConnection(self.address, timeout=20)
        try:
            connection.request("POST", path, json.dumps(body), {"authorization": f"Bearer {key}"})
            connection.getresponse().read()
        except (OSError, http.client.HTTPException):
            pass  # broken off, as it was told to be
        finally:
            connection.close()

    def admin_post(self, path):
        request = urllib.request.Request(f"http://{self.admin}{path}", method="POST")
        with urllib.request.urlopen(request, timeout=10) as answer:
            answer.read()


class Prometheus:
    def __init__(self, started, folder, targets):
        self.address = f"127.0.0.1:{free_ports(1)[0]}"
        self.began = time.time()
        # The configuration that is shipped, with other targets, and faster.
        text = (PROMETHEUS / "prometheus.yml").read_text()
        assert text.count("_interval: 15s") == 2 and text.count("localhost:9400\n") == 1, "prometheus.yml is another"
        text = text.replace("_interval: 15s", "_interval: 1s")
        text = text.replace("- localhost:9400\n", "\n          - ".join(["", *targets]).strip() + "\n")
        (folder / "prometheus.yml").write_text(text)
        shutil.copy(PROMETHEUS / "rules.yaml", folder)
        started.start(
            folder / "prometheus.log",
            "prometheus",
            f"--config.file={folder}/prometheus.yml",
            f"--storage.tsdb.path={folder}/data",
            f"--web.listen-address={self.address}",
        )

    def api(self, path, **parameters):
        """The data of an answer; an error of Prometheus' is raised as `ValueError`."""
        query = urllib.parse.urlencode(parameters, doseq=True)
        try:
            with urllib.request.urlopen(f"http://{self.address}/api/v1/{path}?{query}", timeout=30) as page:
                return json.load(page)["data"]
        except urllib.error.HTTPError as error:
            raise ValueError(json.load(error)["error"]) from error

    def has_data(self, query):
        """Whether a query gives a number at any moment since the start."""
        series = self.api("query_range", query=query, start=self.began, end=time.time(), step=1)["result"]
        return any(not math.isnan(float(value)) for one in series for _, value in one["values"])

    def await_data(self, query, deadline):
        while not self.has_data(query) and time.monotonic() < deadline:
            time.sleep(1)

    def check_targets(self):
        """Prometheus asks for OpenMetrics, and reads it strictly: this is the check of that format."""
        for target in self.api("targets")["activeTargets"]:
            if target["health"] != "up":
                problems.append(f"{target['scrapeUrl']} is {target['health']}: {target['lastError']}")
        if not self.has_data("avg_over_time(up[10s]) == 1"):
            problems.append("no target was up for 10 s")

    def alerts(self):
        """The alerts, and their names by state; waits for those that must be there."""
        deadline = time.monotonic() + RULES_SECONDS
        while True:
            alerts = self.api("alerts")["alerts"]
            by_state = {
                state: {alert["labels"]["alertname"] for alert in alerts if alert["state"] == state}
                for state in ["firing", "pending"]
            }
            if MUST_FIRE <= by_state["firing"] or time.monotonic() > deadline:
                return alerts, by_state
            time.sleep(0.5)

    def check_rules(self):
        rules = [rule for group in self.api("rules")["groups"] for rule in group["rules"]]
        names = set(self.api("label/__name__/values"))
        for rule in rules:
            name = rule["name"]
            if rule["health"] != "ok":
                problems.append(f"rule {name} is {rule['health']}: {rule.get('lastError')}")
            if rule["type"] == "recording" and not self.has_data(f'{{__name__="{name}"}}'):
                problems.append(f"rule {name} has recorded nothing")
            try:
                self.has_data(rule["query"])
            except ValueError as error:
                problems.append(f"rule {name}: {error}")
            # An alert has data when something is wrong; what it looks at must be there.
            for metric in metrics_of(rule["query"]) - names:
                problems.append(f"rule {name}: there is no metric {metric}")

        alerts, by_state = self.alerts()
        for alert in alerts:
            for text in alert["annotations"].values():
                if "<no value>" in text or "<error" in text or "{{" in text:
                    problems.append(f"alert {alert['labels']['alertname']}: {text}")
        for missing in MUST_FIRE - by_state["firing"]:
            problems.append(f"alert {missing} does not fire")
        for missing in MUST_BE_PENDING - by_state["pending"] - by_state["firing"]:
            problems.append(f"alert {missing} is not pending")
        recording = sum(rule["type"] == "recording" for rule in rules)
        print(f"rules: {recording} recorded, {len(rules) - recording} alerts; {by_state}")


def check_shape(dashboard):
    """What makes an import fail, or a panel be without data or place; Grafana itself is not at hand."""
    if dashboard["id"] is not None:
        problems.append("the dashboard has the id of one Grafana")
    panels = dashboard["panels"]
    if len({panel["id"] for panel in panels}) < len(panels):
        problems.append("two panels have one id")
    taken = {}
    for panel in panels:
        title, at = panel["title"], panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        if at["x"] + at["w"] > 24 or cells & taken.keys():
            problems.append(f"panel {title} lies over another one, or beyond the edge")
        taken |= dict.fromkeys(cells, title)
        if panel["type"] == "row":
            continue
        if len(panel.get("description", "")) < 10:
            problems.append(f"panel {title} has no description")
        variable = {"type": "prometheus", "uid": "${datasource}"}
        if any(part["datasource"] != variable for part in [panel, *panel["targets"]]):
            problems.append(f"panel {title} has a data source of its own")


def check_dashboard(prometheus, demo, troubled):
    dashboard = json.loads(DASHBOARD.read_text())
    check_shape(dashboard)
    for variable in dashboard["templating"]["list"]:
        if found := re.fullmatch(r"label_values\((.*), (\w+)\)", variable.get("definition", "")):
            selector, label = substituted(found[1], demo), found[2]
            if not prometheus.api(f"label/{label}/values", **{"match[]": selector}):
                problems.append(f"variable {variable['name']} has no values")

    annotations = [annotation for annotation in dashboard["annotations"]["list"] if "expr" in annotation]
    queries = [(annotation["name"], annotation["expr"]) for annotation in annotations]
    for panel in dashboard["panels"]:
        queries += [(panel["title"], target["expr"]) for target in panel.get("targets", [])]

    without_data = set()
    for title, query in queries:
        try:
            if prometheus.has_data(substituted(query, demo)):
                continue
            without_data.add(title)
            if title not in ONLY_AFTER_EVENTS:
                problems.append(f"{title}: the demo has no data: {query}")
            if not prometheus.has_data(substituted(query, troubled)):
                problems.append(f"{title}: there are no data after the event either: {query}")
        except ValueError as error:
            problems.append(f"{title}: {error}: {query}")
    unknown = ONLY_AFTER_EVENTS - {title for title, _ in queries}
    problems.extend(f"there is no panel {title}" for title in unknown)

    # All that is exposed can be seen somewhere.
    shown = set().union(*(metrics_of(query) for _, query in queries))
    shown |= metrics_of((PROMETHEUS / "rules.yaml").read_text())
    exposed = {name for name in prometheus.api("label/__name__/values") if re.match("tidegate_|process_", name)}
    families = {re.sub("_(bucket|sum|count)$", "", name) for name in exposed}
    for family in sorted(families - {re.sub("_(bucket|sum|count)$", "", name) for name in shown}):
        problems.append(f"{family} is neither on the dashboard nor in a rule")
    print(f"dashboard: {len(queries)} queries, {len(without_data)} panels have data only after an event")


def substituted(query, instance):
    query = query.replace("$__rate_interval", "15s").replace("$instance", re.escape(instance).replace("\\", "\\\\"))
    query = query.replace("$group", ".*")
    assert "$" not in query, query
    return query


def metrics_of(query):
    """The metrics that are named, also those that rules record (`job:tidegate_requests:...`)."""
    return set(re.findall(r"(?<![\w:])(?:[a-z_]+:)?(?:tidegate|process)_[a-z_]+(?::\w+)?|tidegate:\w+:\w+", query))


def check_metrics(admin):
    """promtool knows the older format only, which it is given; OpenMetrics is left to Prometheus itself."""
    with urllib.request.urlopen(f"http://{admin}/metrics", timeout=10) as page:
        promtool("check", "metrics", input=page.read())


def promtool(*arguments, input=None):
    result = subprocess.run(["promtool", *map(str, arguments)], input=input, capture_output=True, timeout=120)
    said = (result.stdout + result.stderr).decode().strip()
    # `check metrics` is silent when there is nothing to say.
    if result.returncode != 0 or (arguments[-1] == "metrics" and said):
        problems.append(f"promtool {' '.join(map(str, arguments))}: {said}")
    else:
        print("promtool", *arguments[:2], "passed", flush=True)


def await_page(address, path):
    deadline = time.monotonic() + READY_SECONDS
    while True:
        try:
            with urllib.request.urlopen(f"http://{address}{path}", timeout=5):
                return
        except OSError as error:
            if time.monotonic() > deadline:
                raise SystemExit(f"http://{address}{path} is not there after {READY_SECONDS} s: {error}") from error
            time.sleep(0.1)


def free_ports(count):
    """Free ports below the range that the system gives to outgoing connections, so that they stay free."""
    ports, held = [], []
    while len(ports) < count:
        port = random.randrange(20_000, 32_000)
        attempt = socket.socket()
        held.append(attempt)
        try:
            attempt.bind(("127.0.0.1", port))
            ports.append(port)
        except OSError:
            continue
    for attempt in held:
        attempt.close()
    return ports


if __name__ == "__main__":
    # Nothing here goes through a proxy of the environment.
    os.environ["NO_PROXY"] = "127.0.0.1"
    main()
