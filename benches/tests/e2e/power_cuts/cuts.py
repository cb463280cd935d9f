#!/usr/bin/env python3
"""Cuts the disk of a server, or of a client's cache, under load, and checks what is there afterwards.

    cuts.py PROGRAMS DIRECTORY FILE_SYSTEM VICTIM CUTS SEED [OPTIONS]

The victim's directory is an ext4 or xfs in a loop device. At a random moment the file system is shut down, as a disk that
is unplugged; 0.3 s later the victim is killed, the disk is mounted again, so that its journal is replayed, and the victim
started. A client's cache finds another boot then: the caller lets BOOT_ID be read in place of the kernel's. Four processes
create, write, fsync, rename and append meanwhile. Then a second client must show, when all has been sent, what fsync had
acknowledged, nothing torn, nothing twice; after a cut of the server exactly what was written.
"""

import hashlib
import json
import os
import random
import socket
import subprocess
import sys
import time

PROGRAMS, DIRECTORY, FILE_SYSTEM, VICTIM = sys.argv[1:5]
CUTS, SEED = int(sys.argv[5]), int(sys.argv[6])
OPTIONS = sys.argv[7] if len(sys.argv) > 7 else ""
IMAGE_BYTES = 8 << 30
WRITERS = 4
SIZES = (0, 100, 4000, 16000, 20000, 60000, 300000)
LIMIT_S = 90

DISK, IMAGE, GO = (os.path.join(DIRECTORY, name) for name in ("disk", "image", "go"))
MOUNTS = {name: os.path.join(DIRECTORY, name) for name in ("a", "b")}
daemons = {}


def until(what, condition):
    end = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > end:
            raise SystemExit(f"waited in vain until {what}")
        time.sleep(0.05)


def mount_disk():
    subprocess.run(["mount", "-o", "loop", IMAGE, DISK], check=True)


def unmount_disk():
    quiet = subprocess.DEVNULL
    until("the disk is free", lambda: subprocess.run(["umount", DISK], stderr=quiet).returncode == 0)


def start(name, *command):
    log = open(os.path.join(DIRECTORY, name + ".log"), "a")
    environment = dict(os.environ, MAFS_RUNTIME_DIR=os.path.join(os.environ["RUNTIME"], name))
    daemons[name] = subprocess.Popen(command, stdout=log, stderr=log, env=environment)


def listens():
    try:
        socket.create_connection(("127.0.0.1", PORT)).close()
        return True
    except OSError:
        return False


def start_server():
    data = os.path.join(DISK if VICTIM == "server" else DIRECTORY, "data")
    start("server", f"{PROGRAMS}/mafs-server", "run", "--data", data, "--listen", f"127.0.0.1:{PORT}")
    until("the server listens", listens)


def start_client(name):
    cache = os.path.join(DISK if (VICTIM, name) == ("client", "a") else DIRECTORY, "cache-" + name)
    options = ",".join(filter(None, ["cache=" + cache, OPTIONS]))
    start(name, f"{PROGRAMS}/mafs-client", "mount", f"127.0.0.1:{PORT}:/home", MOUNTS[name], "-f", "-o", options)
    until("the mount is there", lambda: f" {MOUNTS[name]} fuse" in open("/proc/mounts").read())


def said(name):
    """The last lines that a daemon has logged."""
    return read(os.path.join(DIRECTORY, name + ".log")).decode(errors="replace").splitlines()[-12:]


def say(name, *words):
    environment = dict(os.environ, MAFS_RUNTIME_DIR=os.path.join(os.environ["RUNTIME"], name))
    command = [f"{PROGRAMS}/mafs-client", *words, MOUNTS[name]]
    try:
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "{}", "it takes too long")


def kill(name):
    daemons[name].kill()
    daemons[name].wait()


def content(name, number, size):
    head = f"{name} {number}\n".encode()
    return head + (hashlib.sha256(head).digest() * (size // 32 + 1))[:size]


class Written:
    """What a writer has done: of each file the versions, and the last that was acknowledged; of each log the lines."""

    def __init__(self):
        self.versions, self.kept, self.lines, self.kept_lines, self.count, self.error = {}, {}, {}, {}, 0, None


def put(path, data, flags):
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | flags, 0o644)
    os.write(descriptor, data)
    os.fsync(descriptor)
    os.close(descriptor)


def sync_directory(path):
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def step(written, base, chance):
    written.count += 1
    number, size = written.count, chance.choice(SIZES)
    kind = chance.randrange(4)
    if kind == 0:
        name = f"replaced{chance.randrange(4)}"
        written.versions.setdefault(name, []).append((name, number, size))
        put(f"{base}/new", content(name, number, size), os.O_TRUNC)
        os.rename(f"{base}/new", f"{base}/{name}")
        sync_directory(base)
        written.kept[name] = number
    elif kind == 1:
        made, name = f"made{number}", f"moved{number}" if number % 3 == 0 else f"made{number}"
        written.versions[made] = [(made, number, size)]
        put(f"{base}/{made}", content(made, number, size), os.O_EXCL)
        written.kept[made] = number
        if name != made:
            # Under either name until the directory is synced.
            written.versions[name] = written.versions.pop(made)
            del written.kept[made]
            os.rename(f"{base}/{made}", f"{base}/{name}")
            sync_directory(base)
            written.kept[name] = number
    else:
        name = f"log{chance.randrange(2)}"
        line = written.lines.get(name, 0)
        written.lines[name] = line + 1
        descriptor = os.open(f"{base}/{name}", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
        os.write(descriptor, f"{name} {line}\n".encode())
        if kind == 2:
            os.fsync(descriptor)
            written.kept_lines[name] = line + 1
        os.close(descriptor)


def write(name, seed):
    """Works in a directory of its own until it is told to stop, or an error comes; says what it did in a file."""
    written, chance, base = Written(), random.Random(seed), os.path.join(MOUNTS["a"], name)
    try:
        os.mkdir(base)
        while os.path.exists(GO):
            step(written, base, chance)
    except OSError as error:
        written.error = str(error)
    with open(os.path.join(DIRECTORY, name + ".json"), "w") as report:
        json.dump(vars(written), report)


def read(path):
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        return str(error).encode()


def check(mount, name, written, exact):
    """What is wrong in a writer's directory; `exact`: its last versions must be there, not only what was acknowledged."""
    base, exact = os.path.join(mount, name), exact and written["error"] is None
    try:
        there = set(os.listdir(base))
    except OSError as error:
        return [str(error)] if written["kept"] or written["kept_lines"] else []
    for file, versions in written["versions"].items():
        kept = written["kept"].get(file, 0)
        if not kept and not exact:
            continue
        data = read(f"{base}/{file}") if file in there else b""
        found = [number for made, number, size in versions if content(made, number, size) == data]
        if not found or found[0] < kept or exact and found[0] != versions[-1][1]:
            yield f"{base}/{file}: version {found} of {kept} to {versions[-1][1]}, {len(data)} bytes {data[:30]}"
    for file, count in written["lines"].items():
        kept = written["kept_lines"].get(file, 0)
        lines = read(f"{base}/{file}").split(b"\n")[:-1] if file in there else []
        if lines != [f"{file} {line}".encode() for line in range(len(lines))]:
            yield f"{base}/{file}: {lines}"
        if not kept <= len(lines) <= count or exact and len(lines) != count:
            yield f"{base}/{file}: {len(lines)} lines of {kept} to {count}"
    moved = {file.replace("moved", "made") for file in written["versions"]}
    for file in there - {"new"} - moved - set(written["versions"]) - set(written["lines"]):
        yield f"{base}/{file} was never written"


def cut(number, chance):
    """One round. Returns what is wrong, and how many steps the writers have done."""
    open(GO, "w").close()
    names = [f"writer{number}.{writer}" for writer in range(WRITERS)]
    children = []
    for name in names:
        seed, child = chance.random(), os.fork()
        if child == 0:
            write(name, seed)
            os._exit(0)
        children.append(child)
    time.sleep(0.3 + 0.9 * chance.random())
    subprocess.run(["xfs_io", "-x", "-c", "shutdown", DISK], check=True)
    time.sleep(0.3)
    if VICTIM == "server":
        kill("server")
        unmount_disk()
        mount_disk()
        start_server()
        time.sleep(0.7)
        os.unlink(GO)
    else:
        kill("a")
        os.unlink(GO)
        subprocess.run(["umount", "-l", MOUNTS["a"]], check=True)
    for child in children:
        os.waitpid(child, 0)
    if VICTIM == "client":
        unmount_disk()
        mount_disk()
        with open(os.environ["BOOT_ID"], "r+") as boot:
            boot.write(f"{number + 1:08}")
        start_client("a")
    return judge(names)


def sync():
    """Has client a send what it has. A server whose index was torn makes that anew first, which may take seconds."""
    end = time.monotonic() + LIMIT_S
    while (synced := say("a", "sync")).returncode != 0 and time.monotonic() < end:
        time.sleep(0.2)
    return synced


def judge(names):
    synced = sync()
    wrong = [] if synced.returncode == 0 else [f"sync: {synced.stderr}"]
    steps = 0
    for name in names:
        written = json.loads(read(os.path.join(DIRECTORY, name + ".json")))
        steps += written["count"]
        if VICTIM == "server" and written["error"]:
            wrong.append(f"{name}: {written['error']}")
        for mount in MOUNTS.values():
            wrong += check(mount, name, written, VICTIM == "server")
    for name in MOUNTS:
        refused = json.loads(say(name, "status", "--json").stdout).get("refused")
        wrong += [f"refused: {refused}"] if refused else []
    return wrong, steps


def end():
    for name in ("a", "b"):
        subprocess.run(["umount", "-l", MOUNTS[name]], stderr=subprocess.DEVNULL)
    for daemon in daemons.values():
        daemon.kill()
        daemon.wait()
    subprocess.run(["umount", "-l", DISK], stderr=subprocess.DEVNULL)


def main():
    chance, bad, steps = random.Random(SEED), 0, 0
    for directory in (DISK, *MOUNTS.values()):
        os.mkdir(directory)
    with open(IMAGE, "w") as image:
        image.truncate(IMAGE_BYTES)
    subprocess.run(["mkfs." + FILE_SYSTEM, "-q", IMAGE], check=True)
    mount_disk()
    start_server()
    start_client("a")
    start_client("b")
    for number in range(CUTS):
        wrong, done = cut(number, chance)
        bad, steps = bad + bool(wrong), steps + done
        for line in wrong[:8]:
            print(f"cut {number}: {line}", flush=True)
        for name in daemons if wrong else ():
            print(f"cut {number}: the end of the log of {name}:", *said(name), sep="\n  ", flush=True)
        if number % 10 == 9:
            print(f"{number + 1} cuts, {bad} with something wrong", flush=True)
    print(f"{VICTIM} on {FILE_SYSTEM} {OPTIONS}: {bad} of {CUTS} cuts with something wrong, {steps} steps")
    return bad


with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    PORT = probe.getsockname()[1]
try:
    status = 1 if main() else 0
finally:
    end()
sys.exit(status)
