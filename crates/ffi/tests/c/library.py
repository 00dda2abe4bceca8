"""The library through ctypes: library.py LIBRARY IMAGE. Every call must answer what is right."""

import ctypes
import errno
import shutil
import sys

path, image = sys.argv[1], sys.argv[2].encode()
lib = ctypes.CDLL(path)
lib.stetfs_message.restype = ctypes.c_char_p
of_counts = ("read", "write", "size", "group_getxattr", "group_listxattr")
of_counts += ("getxattr", "listxattr", "readlink")
for name in map("stetfs_".__add__, of_counts):
    getattr(lib, name).restype = ctypes.c_int64
lib.stetfs_begin.restype = ctypes.c_void_p
WRITE, CREATE, EXCLUSIVE, TRUNCATE = 1, 2, 4, 8


def fails(code, result):
    assert result == -code, (result, lib.stetfs_message())
    assert lib.stetfs_message(), "no words"


def works(result):
    assert result >= 0, (result, lib.stetfs_message())
    return result


def at(offset):
    return ctypes.c_uint64(offset)


def write(file, data, offset):
    return lib.stetfs_write(file, data, ctypes.c_size_t(len(data)), at(offset))


def read(file, length, offset):
    out = ctypes.create_string_buffer(length)
    n = works(lib.stetfs_read(file, out, ctypes.c_size_t(length), at(offset)))
    return out.raw[:n]


def opened(volume, name, flags):
    file = ctypes.c_void_p()
    works(lib.stetfs_open_file(volume, name, flags, 0o644, ctypes.byref(file)))
    return file


copy = image + b".copy"
shutil.copyfile(image, copy)
volume = ctypes.c_void_p()
fails(errno.ENOENT, lib.stetfs_open(image + b".none", None, ctypes.byref(volume)))
fails(errno.EINVAL, lib.stetfs_open(image, b"no-such-option", ctypes.byref(volume)))
fails(errno.EINVAL, lib.stetfs_open(None, None, ctypes.byref(volume)))
works(lib.stetfs_open(image, b"data=journal", ctypes.byref(volume)))
other = ctypes.c_void_p()
fails(errno.EBUSY, lib.stetfs_open(image, b"data=journal", ctypes.byref(other)))
assert b"in use" in lib.stetfs_message(), lib.stetfs_message()

fails(errno.ENOENT, lib.stetfs_open_file(volume, b"/a", 0, 0, ctypes.byref(other)))
fails(errno.EINVAL, lib.stetfs_open_file(volume, b"/a", 1 << 20, 0, ctypes.byref(other)))
works(lib.stetfs_mkdir(volume, b"/dir", 0o755))
fails(errno.EEXIST, lib.stetfs_mkdir(volume, b"/dir", 0o755))
a = opened(volume, b"/dir/a", WRITE | CREATE | EXCLUSIVE)
flags = WRITE | CREATE | EXCLUSIVE
fails(errno.EEXIST, lib.stetfs_open_file(volume, b"/dir/a", flags, 0, ctypes.byref(other)))
assert works(write(a, b"hello", 5000)) == 5
assert works(lib.stetfs_size(a)) == 5005
assert read(a, 100, 4999) == b"\0hello"
works(lib.stetfs_fsync(a))
works(lib.stetfs_truncate(a, at(5002)))
assert read(a, 100, 5000) == b"he"

b = opened(volume, b"/b", WRITE | CREATE)
group = ctypes.c_void_p(lib.stetfs_begin(volume))


def stage(file, data, offset):
    return lib.stetfs_group_write(group, file, data, ctypes.c_size_t(len(data)), at(offset))


works(stage(a, b"one", 0))
works(stage(b, b"two", 0))
out = ctypes.create_string_buffer(3)
assert lib.stetfs_group_read(group, b, out, ctypes.c_size_t(3), at(0)) == 3 and out.raw == b"two"
assert (read(a, 3, 0), read(b, 3, 0)) == (b"\0\0\0", b"")
works(lib.stetfs_commit(group))
assert (read(a, 3, 0), read(b, 3, 0)) == (b"one", b"two")
fails(errno.EFBIG, stage(b, bytes(8 << 20), 0))
works(stage(b, b"six", 0))
lib.stetfs_end(group)
assert read(b, 3, 0) == b"two"

# Names in a group, which are as the group sees them.
group = ctypes.c_void_p(lib.stetfs_begin(volume))
works(lib.stetfs_group_mkdir(group, b"/new", 0o755))
made = ctypes.c_void_p()
works(lib.stetfs_group_create(group, b"/new/file", 0o644, ctypes.byref(made)))
assert works(write(made, b"content", 0)) == 7
works(lib.stetfs_group_symlink(group, b"new", b"/way"))
works(lib.stetfs_group_link(group, b"/way/file", b"/new/too"))
works(lib.stetfs_group_rename(group, b"/new/file", b"/new/other"))
works(lib.stetfs_group_unlink(group, b"/new/too"))
fails(errno.ENOTEMPTY, lib.stetfs_group_rmdir(group, b"/new"))
works(lib.stetfs_group_truncate(group, b, at(1)))
fails(errno.ENOENT, lib.stetfs_open_file(volume, b"/new/other", 0, 0, ctypes.byref(other)))


def set_attribute(path, name, value, flags):
    length = ctypes.c_size_t(len(value))
    return lib.stetfs_group_setxattr(group, path, name, value, length, flags)


def attribute(path, name, length):
    out = ctypes.create_string_buffer(length)
    n = works(lib.stetfs_group_getxattr(group, path, name, out, ctypes.c_size_t(length)))
    return n, out.raw[:n]


XATTR_CREATE, XATTR_REPLACE = 1, 2
for path in (b"/dir", b"/new"):
    fails(errno.ENODATA, set_attribute(path, b"user.a", b"value", XATTR_REPLACE))
    works(set_attribute(path, b"user.a", b"value", XATTR_CREATE))
    fails(errno.EEXIST, set_attribute(path, b"user.a", b"value", XATTR_CREATE))
    fails(errno.EINVAL, set_attribute(path, b"user.a", b"value", 4))
    works(set_attribute(path, b"user.b", b"", 0))
    assert attribute(path, b"user.a", 9) == (5, b"value")
    assert attribute(path, b"user.a", 0) == (5, b"")
    fails(errno.ERANGE, lib.stetfs_group_getxattr(group, path, b"user.a", b"1", at(1)))
    works(lib.stetfs_group_removexattr(group, path, b"user.b"))
    fails(errno.ENODATA, lib.stetfs_group_removexattr(group, path, b"user.b"))
    names = ctypes.create_string_buffer(20)
    assert lib.stetfs_group_listxattr(group, path, names, at(20)) == 7
    assert names.raw[:7] == b"user.a\0"
works(lib.stetfs_commit(group))
for path in (b"/dir", b"/new"):
    assert attribute(path, b"user.a", 9) == (5, b"value")
found = opened(volume, b"/way/other", 0)
assert read(found, 9, 0) == b"content"
works(lib.stetfs_close_file(found))
fails(errno.ENOENT, lib.stetfs_open_file(volume, b"/new/file", 0, 0, ctypes.byref(other)))
assert read(b, 3, 0) == b"t"

reader = opened(volume, b"/b", 0)
fails(errno.EBADF, write(reader, b"x", 0))
fails(errno.EBADF, stage(reader, b"x", 0))
fails(errno.EBADF, lib.stetfs_truncate(reader, at(0)))
fails(errno.EINVAL, lib.stetfs_write(b, b"x", ctypes.c_size_t(-1), at(0)))
works(lib.stetfs_close_file(reader))
second = ctypes.c_void_p()
works(lib.stetfs_open(copy, b"scheme=stet", ctypes.byref(second)))
elsewhere = opened(second, b"/elsewhere", WRITE | CREATE)
fails(errno.EXDEV, stage(elsewhere, b"x", 0))
works(lib.stetfs_close_file(elsewhere))
works(lib.stetfs_close(second))
lib.stetfs_end(group)
works(lib.stetfs_close_file(made))


class Time(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_int64), ("nanoseconds", ctypes.c_uint32)]


class Stat(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("ino", "size", "blocks")]
    _fields_ += [(n, ctypes.c_uint32) for n in ("mode", "nlink", "uid", "gid", "major", "minor")]
    _fields_ += [(name, Time) for name in ("atime", "mtime", "ctime", "crtime")]


class Entry(ctypes.Structure):
    _fields_ = [("ino", ctypes.c_uint64), ("kind", ctypes.c_uint8), ("name", ctypes.c_char * 256)]


def stat(path, follow=1):
    found = Stat()
    works(lib.stetfs_stat(volume, path, follow, ctypes.byref(found)))
    return found


def listed(path):
    cookie, entry, names = ctypes.c_uint64(0), Entry(), {}
    while works(lib.stetfs_readdir(volume, path, ctypes.byref(cookie), ctypes.byref(entry))):
        assert entry.name not in names
        names[entry.name] = entry.kind, entry.ino
    return names


# Names and attributes without a group, by path.
works(lib.stetfs_mkdir(volume, b"/tree", 0o750))
many = [b"n%d" % n for n in range(300)]
for name in many:
    works(lib.stetfs_close_file(opened(volume, b"/tree/" + name, WRITE | CREATE)))
works(lib.stetfs_symlink(volume, b"n7", b"/tree/link"))
works(lib.stetfs_link(volume, b"/tree/n7", b"/tree/again"))
names = listed(b"/tree")
assert set(names) == {b".", b"..", b"link", b"again", *many}
assert names[b"link"][0] == 10 and names[b"n7"][0] == 8 and names[b"."][0] == 4
assert names[b"again"][1] == names[b"n7"][1] == stat(b"/tree/n7").ino
assert stat(b"/tree").mode == 0o40750 and stat(b"/tree/n7").nlink == 2
assert stat(b"/tree/link").mode == stat(b"/tree/n7").mode
assert stat(b"/tree/link", 0).mode == 0o120777
target = ctypes.create_string_buffer(9)
assert lib.stetfs_readlink(volume, b"/tree/link", target, at(9)) == 2 and target.raw[:2] == b"n7"
fails(errno.ERANGE, lib.stetfs_readlink(volume, b"/tree/link", target, at(1)))
fails(errno.EINVAL, lib.stetfs_readlink(volume, b"/tree/n7", target, at(9)))
works(lib.stetfs_chmod(volume, b"/tree/link", 0o600))
works(lib.stetfs_chown(volume, b"/tree/n7", 1000, ctypes.c_uint32(-1)))
works(lib.stetfs_utimes(volume, b"/tree/n7", None, ctypes.byref(Time(12345, 678))))
fails(errno.EINVAL, lib.stetfs_utimes(volume, b"/tree/n7", ctypes.byref(Time(1, 10**9)), None))
found = stat(b"/tree/n7")
assert (found.mode, found.uid, found.gid) == (0o100600, 1000, 0)
assert (found.mtime.seconds, found.mtime.nanoseconds) == (12345, 678)
assert found.crtime.seconds > 0 and found.size == 0
works(lib.stetfs_setxattr(volume, b"/tree/n7", b"user.a", b"value", at(5), XATTR_CREATE))
fails(errno.EEXIST, lib.stetfs_setxattr(volume, b"/tree/n7", b"user.a", b"", at(0), XATTR_CREATE))
value = ctypes.create_string_buffer(9)
assert lib.stetfs_getxattr(volume, b"/tree/n7", b"user.a", value, at(9)) == 5
assert value.raw[:5] == b"value"
assert lib.stetfs_listxattr(volume, b"/tree/n7", value, at(9)) == 7
works(lib.stetfs_removexattr(volume, b"/tree/n7", b"user.a"))
fails(errno.ENODATA, lib.stetfs_getxattr(volume, b"/tree/n7", b"user.a", value, at(9)))
fails(errno.ENOTEMPTY, lib.stetfs_rmdir(volume, b"/tree"))
fails(errno.ENOTDIR, lib.stetfs_rmdir(volume, b"/tree/n7"))
fails(errno.ENOENT, lib.stetfs_stat(volume, b"/none", 1, ctypes.byref(found)))
for name in [b"link", b"again", *many]:
    works(lib.stetfs_unlink(volume, b"/tree/" + name))
works(lib.stetfs_rmdir(volume, b"/tree"))

works(lib.stetfs_rename(volume, b"/b", b"/c"))
works(lib.stetfs_unlink(volume, b"/c"))
fails(errno.ENOENT, lib.stetfs_unlink(volume, b"/c"))
works(lib.stetfs_sync(volume))
for file in (a, b):
    works(lib.stetfs_close_file(file))
works(lib.stetfs_close(volume))

works(lib.stetfs_open(image, b"ro", ctypes.byref(volume)))
a = opened(volume, b"/dir/a", 0)
assert read(a, 3, 0) == b"one"
fails(errno.EROFS, lib.stetfs_mkdir(volume, b"/other", 0o755))
works(lib.stetfs_close_file(a))
works(lib.stetfs_close(volume))
