"""What goes wrong during a soak: one fault after the other, each over when its function returns, but for what it broke."""
import itertools
import os
import random
import resource

from soak_servers import DEVICE_BYTES
from tier_tools import Redis, damage_files

REDIS_MEMORY = "48mb"  # full all the time
SMALL_FILE = 64 << 10


class SoakRedis(Redis):
    """A Redis that evicts, and tells who is connected."""

    def limit(self, memory=REDIS_MEMORY, policy="allkeys-lru"):
        self.command("CONFIG", "SET", "maxmemory", memory)
        self.command("CONFIG", "SET", "maxmemory-policy", policy)

    def clients(self):
        """Connections, that of this question not counted."""
        for line in self.command("INFO", "clients").split(b"\r\n"):
            if line.startswith(b"connected_clients:"):
                return int(line.split(b":")[1]) - 1
        raise RuntimeError("Redis does not tell its clients")


class Faults:
    """Of one thread."""

    def __init__(self, soak):
        self.soak, self.redis = soak, soak.redis
        self.random = random.Random(f"{soak.seed} faults")
        self.faults = [self.freeze_redis, self.kill_redis, self.empty_redis, self.damage_redis, self.fill_redis, self.hang_up_redis,
                       self.damage_disk, self.cut_disk, self.lose_disk, self.fill_disk, self.reload]
        # All of them in one order after the other, as with restarts: none is left out by chance.
        self.next = []
        self.ends = itertools.cycle([self.kill, self.terminate])

    def make_one(self):
        if not self.next:
            self.next = self.random.sample(self.faults, len(self.faults))
        fault = self.next.pop()
        fault(self.random.choice(self.soak.replicas))
        self.soak.count(f"fault {fault.__name__}")

    def restart_one(self):
        replica = self.random.choice(self.soak.replicas)
        end = next(self.ends)
        replica.restart(end)
        self.soak.count(f"restart {end.__name__}")

    def kill(self, server):
        server.kill()

    def terminate(self, server):
        """In the middle of everything."""
        if (code := server.end()) != 0:
            self.soak.fail(f"a server that was told to end did so with {code}")

    def wait(self, least, most):
        self.soak.over.wait(self.random.uniform(least, most))

    # --- Redis, which all servers share ---

    def freeze_redis(self, _):
        self.redis.freeze()
        self.wait(0.5, 3)
        self.redis.thaw()

    def kill_redis(self, _):
        self.redis.kill()
        self.wait(0, 2)
        self.redis.start()
        self.redis.limit()

    def empty_redis(self, _):
        self.redis.command("FLUSHALL")

    def damage_redis(self, _):
        self.redis.flip_a_byte_of_every_value()

    def fill_redis(self, _):
        """It takes nothing more, and says so."""
        self.redis.limit("1mb", "noeviction")
        self.wait(0.5, 3)
        self.redis.limit()

    def hang_up_redis(self, _):
        self.redis.command("CLIENT", "KILL", "TYPE", "normal")

    # --- the disk, of one server ---

    def damage_disk(self, replica):
        try:
            self.soak.count("bytes damaged", damage_files(replica.cold))
        except (FileNotFoundError, IndexError):
            pass  # the tier was faster

    def some_blobs(self, replica):
        blobs = sorted(replica.cold.glob("*.blob"))
        return self.random.sample(blobs, min(2, len(blobs)))

    def cut_disk(self, replica):
        for path in self.some_blobs(replica):
            try:
                os.truncate(path, path.stat().st_size // 2)
            except FileNotFoundError:
                pass

    def lose_disk(self, replica):
        for path in self.some_blobs(replica):
            path.unlink(missing_ok=True)

    def fill_disk(self, replica):
        """A device of its own is as large as what lies on it. Elsewhere no file may grow beyond a size that most have:
        appending fails, writing new ones fails half-way."""
        if replica.has_own_device:
            used = os.statvfs(replica.cold)
            if replica.resize_device((used.f_blocks - used.f_bfree) * used.f_frsize + SMALL_FILE):  # else more lies there by now
                self.wait(0.5, 4)
            if not replica.resize_device(DEVICE_BYTES):
                raise RuntimeError("the device cannot be made larger again")
            return
        pid = replica.server.pid
        limits = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (SMALL_FILE, limits[1]))
        self.wait(0.5, 4)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, limits)

    # --- the server ---

    def reload(self, replica):
        replica.reload()
