"""What goes wrong, by kind. Each is also the built-in exception that a caller would expect."""


class KvlinkError(Exception):
    """Anything that KVLink reports. The text says what, where and the value seen."""


class InvalidArgumentError(KvlinkError, ValueError):
    """The caller's value cannot be used."""


class NotFoundError(KvlinkError, LookupError):
    """No such file or name."""


class ResourceExhaustedError(KvlinkError, MemoryError):
    """A budget is full; later it may work."""


class FailedPreconditionError(KvlinkError, RuntimeError):
    """Valid, but not in this state: closed, or still in use."""


class UnsupportedError(KvlinkError, NotImplementedError):
    """Known, but not supported here."""


class UnavailableError(KvlinkError, ConnectionError):
    """A peer or a device did not answer."""


class DeadlineError(KvlinkError, TimeoutError):
    """It took too long."""


class DataLossError(KvlinkError):
    """Bytes are corrupt."""
