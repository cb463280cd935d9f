"""A process that does file operations as it is told, line by line, over a UNIX socket: what needs fork(2) or mmap(2).

    hands.py SOCKET

Its first line is its process id. Each answer is `LENGTH TEXT` on a line of its own and then LENGTH bytes; TEXT is `ok`
and perhaps numbers, or the name of an error. Paths are relative to the working directory. Descriptors and mappings have
numbers that are given with the command. After `fork` the child connects by itself, with all that its parent has open.
"""
import ctypes
import errno
import os
import socket
import sys
import time

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.msync.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
PROT_READ_WRITE, MAP_SHARED, MS_SYNC = 3, 1, 4
READ_BYTES = 1 << 24

files = {}     # number -> descriptor
mappings = {}  # number -> (address, length)


def content(number, length):
    """The bytes of one write: its number over and over, a line each."""
    return (b'%07d\n' % number * (length // 8 + 1))[:length]


def checked(result):
    """The result of a call of libc, or its error."""
    if result in (-1, ctypes.c_void_p(-1).value):
        raise OSError(ctypes.get_errno(), 'libc')
    return result


def look(status):
    return f'ok {status.st_size} {status.st_nlink}'


def open_file(file, path, flags):
    files[int(file)] = os.open(path, int(flags), 0o644)


def close_file(file):
    os.close(files.pop(int(file)))


def dup_file(file, copy):
    files[int(copy)] = os.dup(files[int(file)])


def write(file, number, length):
    return f'ok {os.write(files[int(file)], content(int(number), int(length)))}'


def pwrite(file, number, length, at):
    return f'ok {os.pwrite(files[int(file)], content(int(number), int(length)), int(at))}'


def get(path):
    """All of a file by its path, and the size that goes with it."""
    fd = os.open(path, os.O_RDONLY)
    try:
        return look(os.fstat(fd)), os.pread(fd, READ_BYTES, 0)
    finally:
        os.close(fd)


def map_file(file, mapping, length):
    address = libc.mmap(None, int(length), PROT_READ_WRITE, MAP_SHARED, files[int(file)], 0)
    mappings[int(mapping)] = (checked(address), int(length))


def store(mapping, number, length, at):
    ctypes.memmove(mappings[int(mapping)][0] + int(at), content(int(number), int(length)), int(length))


def sync_mapping(mapping):
    checked(libc.msync(*mappings[int(mapping)], MS_SYNC))


def unmap(mapping):
    checked(libc.munmap(*mappings.pop(int(mapping))))


def shell(script):
    pid = os.posix_spawn('/bin/sh', ['sh', '-ec', script], dict(os.environ, LC_ALL='C'))
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return 'ok' if code == 0 else f'exit {code}'


OPERATIONS = {
    'open': open_file,
    'close': close_file,
    'dup': dup_file,
    'write': write,
    'pwrite': pwrite,
    'read': lambda file, length: ('ok', os.read(files[int(file)], int(length))),
    'pread': lambda file: ('ok', os.pread(files[int(file)], READ_BYTES, 0)),
    'seek': lambda file, at, whence: f'ok {os.lseek(files[int(file)], int(at), int(whence))}',
    'ftruncate': lambda file, length: os.ftruncate(files[int(file)], int(length)),
    'truncate': lambda path, length: os.truncate(path, int(length)),
    'fsync': lambda file: os.fsync(files[int(file)]),
    'fstat': lambda file: look(os.fstat(files[int(file)])),
    'stat': lambda path: look(os.stat(path)),
    'get': get,
    'rename': os.rename,
    'link': os.link,
    'unlink': os.unlink,
    'map': map_file,
    'store': store,
    'load': lambda mapping, length: ('ok', ctypes.string_at(mappings[int(mapping)][0], int(length))),
    'msync': sync_mapping,
    'unmap': unmap,
    'pause': lambda microseconds: time.sleep(int(microseconds) / 1e6),
}


def answer(words, line):
    """Does one operation, and says what came of it."""
    try:
        said = shell(line) if words[0] == 'shell' else OPERATIONS[words[0]](*words[1:])
    except OSError as error:
        said = errno.errorcode[error.errno]
    text, data = said if isinstance(said, tuple) else (said or 'ok', b'')
    return b'%d %s\n%s' % (len(data), text.encode(), data)


def connect():
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(sys.argv[1])
    connection.sendall(b'%d\n' % os.getpid())
    return connection, connection.makefile('rb')


def work():
    connection, lines = connect()
    while line := lines.readline().decode().rstrip('\n'):
        words = line.split(' ')
        if words[0] == 'exit':
            os._exit(0)
        if words[0] != 'fork':
            connection.sendall(answer(words, line[len('shell '):]))
        elif os.fork() == 0:
            # A fork ends a batch: nothing is left in the buffer.
            connection.close()
            lines.close()
            connection, lines = connect()
        else:
            connection.sendall(b'0 ok\n')


try:
    work()
except ConnectionError:
    # Nobody asks any more.
    os._exit(1)
