"""The packages as they are released, judged by lintian (scripts/setup.sh --heavy): no error and no warning."""
import shutil
import subprocess

import pytest

from installed import BUILD, run


@pytest.mark.skipif(shutil.which("lintian") is None, reason="needs lintian")
def test_lintian_has_nothing_to_say(tmp_path):
    run("cpack", "-G", "DEB", "--config", BUILD / "CPackConfig.cmake", "-B", tmp_path, timeout=1200)
    packages = sorted(map(str, tmp_path.glob("*.deb")))
    assert len(packages) == 2
    done = subprocess.run(["lintian", "--fail-on", "error,warning", "--allow-root", *packages], capture_output=True, text=True,
                          check=False, timeout=1200)
    assert done.returncode == 0, done.stdout + done.stderr
