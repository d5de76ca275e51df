"""What the tests share that install the package into a Debian of its own: the Debian and the package, made once."""
import shutil

import pytest

import debian


@pytest.fixture(scope="session")
def package(tmp_path_factory):
    return debian.make_package(tmp_path_factory.mktemp("package"))


@pytest.fixture(scope="session")
def base(tmp_path_factory):
    """A folder with the smallest Debian 12: copy it, do not change it."""
    folder = tmp_path_factory.mktemp("debian") / "base"
    debian.bootstrap(folder)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)
