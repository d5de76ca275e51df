"""The image, built by podman out of the Dockerfile and run as it tells people to: with the package of this build in place of the
stage that would compile it again."""
import json
import os
import re
import resource
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from debian import copy, curl, missing, status_of, wait_for
from installed import MODEL, SOURCE, run

pytestmark = pytest.mark.skipif(missing("podman", "crun") is not None, reason=str(missing("podman", "crun")))

# Of Debian's slim images: no documents but copyrights.
SLIM = "path-exclude /usr/share/doc/*\npath-include /usr/share/doc/*/copyright\npath-exclude /usr/share/man/*\n"
# What this test may not have to give: cgroups, the limits that podman would set, systemd's journal.
HERE = ["--cgroups", "disabled", "--log-driver", "k8s-file", "--ulimit", "nproc=4096:4096",
        "--ulimit", "nofile={0}:{0}".format(resource.getrlimit(resource.RLIMIT_NOFILE)[1])]
# What a careful operator adds.
GUARDED = [*HERE, "--network", "none", "--read-only", "--cap-drop", "all", "--security-opt", "no-new-privileges"]


class Podman:
    """podman on a storage of its own, whose path must be short, and where no version 2 of cgroups is mounted beside version 1,
    which crun refuses."""

    def __init__(self):
        self.holder = subprocess.Popen(["unshare", "--mount", "--propagation", "private", "sh", "-c",
                                        "umount /sys/fs/cgroup/unified 2>/dev/null; echo; exec sleep infinity"],
                                       stdout=subprocess.PIPE)
        self.holder.stdout.readline()  # by then it has a mount namespace of its own
        self.folder = Path(tempfile.mkdtemp(prefix="kvl", dir="/tmp"))
        self.driver = "overlay"
        try:
            self("info")
        except AssertionError:  # no overlay on this file system: copies instead
            self.driver = "vfs"

    def __call__(self, *command, **options):
        # The tests ask for the state of health themselves; no timers of systemd.
        environment = {**os.environ, "DISABLE_HC_SYSTEMD": "true"}
        return run("nsenter", "--target", self.holder.pid, "--mount", "podman", "--root", self.folder / "s",
                   "--runroot", self.folder / "r", "--tmpdir", self.folder / "t", "--storage-driver", self.driver,
                   "--cgroup-manager", "cgroupfs", "--events-backend", "file", *command, env=environment, **options)

    def log(self, name):
        """Standard output and error of a container."""
        return Path(self("inspect", "--format", "{{.HostConfig.LogConfig.Path}}", name).strip()).read_text()

    def remove(self):
        self("rm", "--all", "--force", "--time", "0")
        self("rmi", "--all", "--force")
        self.holder.kill()
        self.holder.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture(scope="module")
def podman(base, package, tmp_path_factory):
    """podman with the images kvlink and kvlink-server."""
    folder = tmp_path_factory.mktemp("image")
    slim = folder / "slim"
    copy(base, slim)
    (slim / "etc/dpkg/dpkg.cfg.d/docker").write_text(SLIM)
    run("tar", "--create", "--file", folder / "slim.tar", "--directory", slim, ".")
    shutil.rmtree(slim)

    built = folder / "built"  # what the stage `build` leaves behind
    model = built / "kvlink/.deps/models" / Path(MODEL).name
    model.parent.mkdir(parents=True)
    shutil.copy(package, built / "kvlink.deb")
    shutil.copy(MODEL, model)
    text = (SOURCE / "Dockerfile").read_text()
    serving = folder / "Dockerfile"
    serving.write_text(text[re.search(r"^FROM .* AS server$", text, re.M).start():])

    engine = Podman()
    try:
        engine("import", folder / "slim.tar", "docker.io/library/debian:12-slim")
        for image, target in (("kvlink-server", ["--target", "server"]), ("kvlink", [])):
            engine("build", "--format", "docker", "--pull-never", "--isolation", "chroot", "--network", "host",
                   "--build-context", f"build={built}", "--tag", image, *target, "--file", serving, folder / "built", timeout=1200)
        yield engine
    finally:
        engine.remove()


def pid_of(podman, name):
    return int(podman("inspect", "--format", "{{.State.Pid}}", name))


def wait_until_healthy(podman, name):
    wait_for(lambda: podman("healthcheck", "run", name) is not None, "an answer of the container")
    return pid_of(podman, name)


def ask(pid, text):
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": 4, "temperature": 0}
    return json.loads(curl(pid, "--fail", "http://127.0.0.1:8080/v1/chat/completions", "--header",
                           "Content-Type: application/json", "--data", json.dumps(body)))


def test_without_any_option_it_answers_as_a_user_on_a_read_only_root_and_ends_well(podman):
    podman("run", "--detach", "--name", "plain", *GUARDED, "--volume", "blocks:/var/cache/kvlink", "kvlink")
    pid = wait_until_healthy(podman, "plain")
    process = status_of(pid)
    assert process["Name"] == "kvlink" and set(process["Uid"].split()) == set(process["Gid"].split()) == {"10001"}
    assert int(process["CapEff"], 16) == 0 and process["NoNewPrivs"] == "1"
    question = "Where does the river " + "and the stone " * 60 + "meet?"
    assert ask(pid, question)["choices"][0]["message"]["content"]
    assert ask(pid, question)["usage"]["prompt_tokens_details"]["cached_tokens"] > 100
    podman("kill", "--signal", "HUP", "plain")  # nothing to read again, and no reason to end
    wait_for(lambda: "SIGHUP" in podman.log("plain"), "a word about the signal")
    assert wait_until_healthy(podman, "plain") == pid
    podman("stop", "--time", "60", "plain")
    assert podman("inspect", "--format", "{{.State.ExitCode}}", "plain").strip() == "0", podman("logs", "plain")
    assert podman("run", "--rm", *GUARDED, "--volume", "blocks:/var/cache/kvlink", "kvlink", "inspect", "list", "--cold-dir",
                  "/var/cache/kvlink/cold").strip()


def test_with_a_model_of_ones_own_mounted(podman):
    podman("run", "--detach", "--name", "own", *GUARDED, "--volume", f"{MODEL}:/models/own.gguf:ro", "kvlink-server", "serve",
           "--host", "0.0.0.0", "--model", "/models/own.gguf", "--kv-memory", "64M")
    pid = wait_until_healthy(podman, "own")
    assert ask(pid, "Say hello.")["model"] == "own"
    podman("stop", "--time", "60", "own")


def test_without_a_model_it_says_so(podman):
    done = podman("run", "--rm", *GUARDED, "kvlink-server", expected=2)
    assert done == ""
