"""Everything that K and V depend on besides tokens, as text for the root of the keys.

Weights by content, so that two servers share when they run the same model from different folders, and
never when a folder's weights were replaced.
"""

import hashlib
import json
import os
import re
from pathlib import Path

from kvlink._errors import InvalidArgumentError, NotFoundError

WEIGHTS = (".safetensors", ".bin", ".pt", ".gguf")
# vLLM's load formats that give the tensors as the files have them. Any other is in the key: what it
# makes of the files, or instead of them ("dummy"), is its own.
READS_THE_FILES = ("auto", "hf", "safetensors", "pt", "npcache", "fastsafetensors", "instanttensor",
                   "mistral", "runai_streamer")
_SHA256 = re.compile(r"[0-9a-f]{64}")


def file_digest(path, known=None):
    """SHA-256 of a file, in hex. A file of Hugging Face's cache is named by it; `known` remembers others
    by path, size and time of change."""
    real = Path(path).resolve()
    if real.parent.name == "blobs" and _SHA256.fullmatch(real.name):
        return real.name
    stat = real.stat()
    name = f"{real}:{stat.st_size}:{stat.st_mtime_ns}"
    if known is not None and name in known:
        return known[name]
    digest = hashlib.sha256()
    with open(real, "rb") as file:
        while chunk := file.read(1 << 22):
            digest.update(chunk)
    if known is not None:
        known[name] = digest.hexdigest()
    return digest.hexdigest()


def folder_digest(folder, memory=None):
    """Of all weights and config.json of a model's or an adapter's folder. `memory`: a JSON file that
    remembers the digests, or None. NotFoundError when there are no weights."""
    folder = Path(folder)
    if not folder.is_dir():
        raise NotFoundError(f"no folder of weights at '{folder}'")
    files = sorted(p for p in folder.iterdir()
                   if p.suffix in WEIGHTS or p.name in ("config.json", "adapter_config.json"))
    if not any(p.suffix in WEIGHTS for p in files):
        raise NotFoundError(f"'{folder}' has no weights ({', '.join(WEIGHTS)})")
    known = _remembered(memory)
    before = dict(known)
    total = hashlib.sha256()
    for path in files:
        total.update(f"{path.name}\0{file_digest(path, known)}\0".encode())
    if memory is not None and known != before:
        _remember(memory, known)
    return total.hexdigest()


def weights_in_key(load_format, digest, config_text):
    """What the key says of the weights. digest(): of the files, or as the user gave it; config_text():
    the model's configuration, which is all that made-up weights depend on."""
    load_format = str(getattr(load_format, "value", load_format)).lower()
    if load_format == "dummy":
        return {"load_format": load_format,
                "config": hashlib.sha256(config_text().encode()).hexdigest()}
    if load_format in READS_THE_FILES:
        return digest()
    return {"load_format": load_format, "digest": digest()}


# Of a configuration: where it was read from, which does not change what is computed.
_NAMES_OF_PLACES = ("_name_or_path", "_model_name_or_path")


def configuration_digest(config):
    """SHA-256, in hex, of a model's configuration as it is used: a Hugging Face configuration as a
    dictionary. The files' digest does not say it all: `--hf-overrides` changes K and V as well."""
    def without_places(value):
        if not isinstance(value, dict):
            return value
        return {str(name): without_places(part) for name, part in value.items()
                if name not in _NAMES_OF_PLACES}

    return hashlib.sha256(fingerprint(without_places(config)).encode()).hexdigest()


def folder_state(folder):
    """Names, sizes and times of change of a folder's files; empty when there is none."""
    try:
        files = sorted((entry.name, entry.stat()) for entry in os.scandir(folder))
    except OSError:
        return ()
    return tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in files)


def _remembered(memory):
    try:
        return dict(json.loads(Path(memory).read_text())) if memory is not None else {}
    except (OSError, ValueError):
        return {}  # it only saves time


def _remember(memory, known):
    path = Path(memory)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.{os.getpid()}")
        part.write_text(json.dumps(known))
        part.replace(path)
    except OSError:
        pass


def model_folder(model, revision=None):
    """The folder of a model that vLLM was given as a path or as a name of Hugging Face's hub."""
    if Path(model).is_dir():
        return Path(model)
    try:
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(model, revision=revision, local_files_only=True))
    except Exception as error:
        raise InvalidArgumentError(
            f"cannot find the weights of '{model}' to digest them ({error}); "
            "give model_digest in kv_connector_extra_config") from error


def fingerprint(parts):
    """One line of JSON, sorted: the same parts give the same text everywhere."""
    return json.dumps(parts, sort_keys=True, separators=(",", ":"), default=str)
