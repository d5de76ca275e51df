"""The unit under a real systemd: the package installed into a Debian of its own that systemd-nspawn boots, with its network to
itself. The steps are those of docs/operations.md, and each goes on from where the one before ended."""
import json
import os
import re
import shutil
import subprocess

import pytest

from debian import PATIENCE_S, apt, copy, curl, missing, processes, wait_for
from installed import MODEL

pytestmark = pytest.mark.skipif(missing("systemd-nspawn") is not None, reason=str(missing("systemd-nspawn")))

CREDENTIALS = """[Service]
LoadCredential=kvlink.toml:/etc/kvlink/kvlink.toml
ExecStart=
ExecStart=/usr/bin/kvlink serve --config %d/kvlink.toml
"""


class Machine:
    """A booted Debian. Called with a command, it runs that in there as root."""

    def __init__(self, root, log):
        self.root = root
        self.nspawn = subprocess.Popen(
            ["systemd-nspawn", "--quiet", f"--directory={root}", "--boot", "--register=no", "--keep-unit", "--private-network",
             "--machine=kvlink-test", "--console=pipe"], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.leader = None

    def wait_until_up(self):
        self.leader = wait_for(self.find_leader, "a first process")
        wait_for(lambda: self.systemctl("is-system-running", expected=None).strip() in {"running", "degraded"}, "the boot")

    def find_leader(self):
        assert self.nspawn.poll() is None
        found = [pid for pid, status in processes().items()
                 if status["PPid"] == str(self.nspawn.pid) and status["NSpid"].split()[-1] == "1"]
        return found[0] if found else None

    def run(self, *command, expected=0):
        done = subprocess.run(["nsenter", "--target", str(self.leader), "--all", *map(str, command)], capture_output=True,
                              text=True, timeout=PATIENCE_S, check=False)
        assert expected is None or done.returncode == expected, f"{command}: {done}"
        return done

    def __call__(self, *command, expected=0):
        return self.run(*command, expected=expected).stdout

    def systemctl(self, *command, expected=0):
        return self("systemctl", *command, expected=expected)

    def show(self, name):
        return self.systemctl("show", "kvlink", "--property", name, "--value").strip()

    def journal(self):
        return self("journalctl", "--unit", "kvlink", "--no-pager", "--output", "cat")

    def process(self):
        """The fields of /proc/PID/status of the service."""
        inside, space = self.show("MainPID"), os.readlink(f"/proc/{self.leader}/ns/pid")
        (found,) = [status for pid, status in processes().items() if status["Name"] == "kvlink"
                    and status["NSpid"].split()[-1] == inside and os.readlink(f"/proc/{pid}/ns/pid") == space]
        return found

    def status(self, path="/v1/models", key=None):
        header = ["--header", f"Authorization: Bearer {key}"] if key else []
        return curl(self.leader, "--output", "/dev/null", "--write-out", "%{http_code}", *header, f"http://127.0.0.1:8080{path}")

    def stop(self):
        self.nspawn.terminate()  # as a power button
        try:
            self.nspawn.wait(timeout=120)
        finally:
            self.nspawn.kill()


@pytest.fixture(scope="module")
def machine(base, package, tmp_path_factory):
    folder = tmp_path_factory.mktemp("service")
    root = folder / "root"
    copy(base, root)
    apt(root, "update")
    apt(root, "install", "--yes", "--no-install-recommends", "systemd", "systemd-sysv", "dbus")
    shutil.copy(package, root / "kvlink.deb")
    apt(root, "install", "--yes", "--no-install-recommends", "/kvlink.deb")
    model = root / "srv/kvlink/model.gguf"
    model.parent.mkdir(parents=True)
    shutil.copy(MODEL, model)
    model.chmod(0o644)
    with (folder / "log").open("w") as log:
        booted = Machine(root, log)
        try:
            booted.wait_until_up()
            yield booted
        finally:
            booted.stop()
    shutil.rmtree(root, ignore_errors=True)


def configure(machine, **settings):
    """Writes the service's file: what the package ships, with these keys set."""
    path = machine.root / "etc/kvlink/kvlink.toml"
    text = path.read_text()
    for name, value in settings.items():
        name = name.replace("_", "-")
        text, changed = re.subn(rf"^#?{name} = .*$", f"{name} = {json.dumps(value)}", text, flags=re.M)
        assert changed == 1, name
    path.write_text(text)


def test_a_start_without_a_model_fails_at_once_and_is_not_tried_again(machine):
    assert machine.systemctl("is-enabled", "kvlink", expected=None).strip() == "disabled"
    machine.systemctl("start", "kvlink", expected=1)
    assert (machine.show("Result"), machine.show("ExecMainStatus"), machine.show("NRestarts")) == ("exit-code", "2", "0")
    assert "--model" in machine.journal()
    machine.systemctl("reset-failed", "kvlink")


def test_it_answers_when_the_start_has_ended_and_can_do_nothing_else(machine):
    machine("sed", "-i", 's|^#model = .*|model = "/srv/kvlink/model.gguf"|', "/etc/kvlink/kvlink.toml")
    configure(machine, kv_memory="128M", threads=1)
    machine.systemctl("enable", "--now", "kvlink")
    assert machine.status("/health") == "200"
    process = machine.process()
    user = int(process["Uid"].split()[0])
    assert 61184 <= user <= 65519, "systemd's dynamic users"
    assert [int(process[name], 16) for name in ("CapEff", "CapPrm", "CapBnd", "CapAmb")] == [0, 0, 0, 0]
    assert process["NoNewPrivs"] == "1" and process["Seccomp"] == "2"
    assert "Serving at http://127.0.0.1:8080" in machine.show("StatusText")


def test_its_blocks_are_in_its_cache_folder(machine):
    body = {"messages": [{"role": "user", "content": "stone " * 200}], "max_tokens": 2, "temperature": 0}
    request = ["--fail", "http://127.0.0.1:8080/v1/chat/completions", "--header", "Content-Type: application/json", "--data",
               json.dumps(body)]
    curl(machine.leader, *request)
    assert json.loads(curl(machine.leader, *request))["usage"]["prompt_tokens_details"]["cached_tokens"] > 100
    stored = machine.root / "var/cache/private/kvlink"
    assert stored.stat().st_mode & 0o777 == 0o700 and (stored / "cold").is_dir()


def test_a_stop_lets_it_end_and_a_reload_without_files_does_not(machine):
    before = machine.show("MainPID")
    machine.systemctl("reload", "kvlink")
    wait_for(lambda: "SIGHUP" in machine.journal(), "a word about the reload")
    assert machine.status("/health") == "200" and machine.show("MainPID") == before
    machine.systemctl("stop", "kvlink")
    assert (machine.show("Result"), machine.show("ExecMainStatus")) == ("success", "0")
    assert "kvlink: stopped" in machine.journal()


def test_reload_takes_new_keys(machine):
    keys = machine.root / "etc/kvlink/keys"

    def new_key(name):
        done = machine.run("kvlink", "key", "new", "--name", name, "--tenant", "acme", "--rights", "inference")
        with keys.open("a") as file:
            file.write(done.stdout)
        return re.search(r"kvl_\S+", done.stderr).group(0)

    first = new_key("first")
    configure(machine, api_keys="/etc/kvlink/keys")
    machine.systemctl("start", "kvlink")
    assert machine.status() == "401" and machine.status(key=first) == "200"
    second = new_key("second")
    assert machine.status(key=second) == "401"
    before = machine.show("MainPID")
    machine.systemctl("reload", "kvlink")
    wait_for(lambda: machine.status(key=second) == "200", "the new key")
    assert machine.status(key=first) == "200" and machine.show("MainPID") == before


def test_a_secret_configuration_is_handed_over(machine):
    (machine.root / "etc/kvlink/kvlink.toml").chmod(0o600)
    machine.systemctl("restart", "kvlink", expected=1)
    assert machine.show("ExecMainStatus") == "2"
    drop_in = machine.root / "etc/systemd/system/kvlink.service.d/override.conf"  # what `systemctl edit` writes
    drop_in.parent.mkdir(parents=True)
    drop_in.write_text(CREDENTIALS)
    machine.systemctl("daemon-reload")
    machine.systemctl("restart", "kvlink")
    assert machine.status("/health") == "200"


def test_an_upgrade_restarts_what_runs_and_a_purge_leaves_no_blocks(machine):
    before = machine.show("MainPID")
    machine("dpkg", "-i", "/kvlink.deb")
    assert machine.show("MainPID") not in {"0", before} and machine.status("/health") == "200"
    machine("dpkg", "--remove", "kvlink")
    assert curl(machine.leader, "http://127.0.0.1:8080/health", expected=7) == ""
    machine("dpkg", "--purge", "kvlink")
    assert not (machine.root / "var/cache/private/kvlink").exists() and not (machine.root / "etc/kvlink/kvlink.toml").exists()
    assert (machine.root / "srv/kvlink/model.gguf").exists()
