"""What `kv_connector_extra_config` may say, checked before anything runs."""

import os
import re
from dataclasses import dataclass, fields
from typing import Optional

from kvlink._errors import InvalidArgumentError

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
          "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}


def byte_size(value, name):
    """4096, "512MiB", "1.5GB" -> bytes."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", str(value))
    unit = _UNITS.get(match[2].upper()) if match else None
    if isinstance(value, bool) or unit is None:
        raise InvalidArgumentError(f"{name} is {value!r}, no size such as 4096, \"512MiB\" or \"2GB\"")
    return int(float(match[1]) * unit)


@dataclass(frozen=True)
class ConnectorOptions:
    """The connector's options; docs/vllm.md explains each."""

    ram_bytes: int = 1 << 30
    cold_dir: Optional[str] = None
    cold_bytes: int = 10 << 30
    remote: Optional[str] = None
    remote_ca_file: str = ""
    remote_ttl_s: float = 24 * 3600.0
    compression: str = "none"
    queue_bytes: int = 512 << 20
    write_share: float = 0.03
    load: str = "async"
    load_timeout_s: float = 5.0
    lookup_timeout_s: float = 0.1
    retry_after_s: float = 30.0
    min_load_tokens: int = 0
    save_generated: bool = True
    tenant: str = ""
    model_digest: Optional[str] = None
    similar: str = "off"
    drain_s: float = 10.0

    @staticmethod
    def parse(config):
        """From the dictionary of the command line. InvalidArgumentError names the option."""
        known = {field.name: field for field in fields(ConnectorOptions)}
        values = {}
        for name, value in config.items():
            if name not in known:
                raise InvalidArgumentError(
                    f"kv_connector_extra_config has no option '{name}'; there are "
                    + ", ".join(sorted(known)))
            values[name] = _checked(name, value)
        options = ConnectorOptions(**values)
        if options.ram_bytes == 0 and options.cold_dir is None and options.remote is None:
            raise InvalidArgumentError("no tier: give ram_bytes, cold_dir or remote")
        return options


_CHOICES = {"load": ("async", "sync"), "similar": ("off", "observe"),
            "compression": ("none", "lz4", "zstd")}


def _checked(name, value):
    default = getattr(ConnectorOptions, name)
    if name.endswith("_bytes"):
        return byte_size(value, name)
    if name in _CHOICES:
        if value not in _CHOICES[name]:
            raise InvalidArgumentError(f"{name} is {value!r}, but must be one of {_CHOICES[name]}")
        return value
    if isinstance(default, bool):
        if not isinstance(value, bool):
            raise InvalidArgumentError(f"{name} is {value!r}, but must be true or false")
        return value
    if isinstance(default, (int, float)):
        most = 1e6 if name.endswith("_s") and name != "remote_ttl_s" else 1e9  # as BlockStore's
        if (isinstance(value, bool) or not isinstance(value, (int, float))
                or not 0 <= value <= most):
            raise InvalidArgumentError(f"{name} is {value!r}, but must be a number from 0 to {most:.0f}")
        return type(default)(value)
    if value is not None and not isinstance(value, str):
        raise InvalidArgumentError(f"{name} is {value!r}, but must be text")
    if name == "remote" and value is not None and value.startswith("env:"):
        return _from_environment(value[len("env:"):])
    return value


def _from_environment(variable):
    """An address with a password need not stand on a command line."""
    if variable not in os.environ:
        raise InvalidArgumentError(f"remote names the environment variable {variable}, which is not set")
    return os.environ[variable]
