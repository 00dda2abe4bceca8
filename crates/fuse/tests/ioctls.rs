//! The ioctls of ext4 and each flag of chattr, compared with the kernel's ext4. A program sends
//! them on a mount of ours and on a kernel mount of a copy of the volume. A list has the
//! differences, each with its reason. A difference that no longer exists fails the test, and so
//! does one that docs/LIMITS.md does not have.

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use support::{Volume, run};

/// Prints a line for each answer: the question, a tab, the errno's name or the result.
const ASK: &str = r#"
import array, errno, fcntl, os, struct, sys
os.chdir(sys.argv[1])
def number(direction, kind, nr, size):
    return direction << 30 | size << 16 | (ord(kind) if isinstance(kind, str) else kind) << 8 | nr
NONE, WRITE, READ, BOTH = 0, 1, 2, 3
def ask(fd, cmd, value=b''):
    buffer = array.array('B', bytes(value).ljust(cmd >> 16 & 0x3fff, b'\0') or bytes(8))
    try:
        fcntl.ioctl(fd, cmd, buffer, True)
    except OSError as e:
        return errno.errorcode[e.errno], None
    return 'ok', buffer.tobytes()
GETFLAGS, SETFLAGS = number(READ, 'f', 1, 8), number(WRITE, 'f', 2, 8)
FSGETXATTR, FSSETXATTR = number(READ, 'X', 31, 28), number(WRITE, 'X', 32, 28)
EXTENTS = 0x80000
def flags(fd):
    return struct.unpack('I', ask(fd, GETFLAGS)[1][:4])[0]
def fresh(kind):
    name = 'tried'
    if kind == 'dir':
        os.mkdir(name)
        return name, os.open(name, os.O_RDONLY)
    return name, os.open(name, os.O_CREAT | os.O_RDWR, 0o644)
for kind in 'file', 'dir':
    for base in 0, 0x10, 0x20, 0x8:
        for bit in range(32):
            name, fd = fresh(kind)
            before = flags(fd)
            assert ask(fd, SETFLAGS, struct.pack('I', before | base))[0] == 'ok'
            answer = ask(fd, SETFLAGS, struct.pack('I', (before | base) ^ 1 << bit))[0]
            then = flags(fd) & ~EXTENTS
            asked = 'flag %08x of a %s with %02x' % (1 << bit, kind, base)
            print('%s\t%s, then %08x' % (asked, answer, then))
            ask(fd, SETFLAGS, struct.pack('I', flags(fd) & ~0x30))
            os.close(fd)
            (os.rmdir if kind == 'dir' else os.unlink)(name)
    for bit in range(32):
        name, fd = fresh(kind)
        value = struct.pack('IIIII8x', 1 << bit, 0, 0, 0, 0)
        answer = ask(fd, FSSETXATTR, value)[0]
        print('xflag %08x of a %s\t%s, then %08x' % (1 << bit, kind, answer, flags(fd) & ~EXTENTS))
        ask(fd, FSSETXATTR, bytes(28))
        os.close(fd)
        (os.rmdir if kind == 'dir' else os.unlink)(name)
fd = os.open('file', os.O_CREAT | os.O_RDWR, 0o644)
os.write(fd, b'x' * 10000)
os.fsync(fd)
def told(name, answer, show=False):
    word, value = answer
    print('%s\t%s' % (name, word if word != 'ok' or not show else word + ' ' + value.hex()))
GETLABEL, SETLABEL = number(READ, 0x94, 49, 256), number(WRITE, 0x94, 50, 256)
told('FS_IOC_GETFSLABEL', ask(fd, GETLABEL), True)
told('FS_IOC_SETFSLABEL', ask(fd, SETLABEL, b'new label'))
told('FS_IOC_GETFSLABEL, after it', ask(fd, GETLABEL), True)
told('FS_IOC_SETFSLABEL of 16 bytes', ask(fd, SETLABEL, b'0123456789abcdef'))
told('FS_IOC_SETFSLABEL of 17 bytes', ask(fd, SETLABEL, b'0123456789abcdefg'))
told('FS_IOC_SETFSLABEL without an end', ask(fd, SETLABEL, b'x' * 256))
told('FS_IOC_GETFSLABEL, after those', ask(fd, GETLABEL), True)
for kind in 'f', 'v':
    nr = 3 if kind == 'f' else 1
    word, value = ask(fd, number(READ, kind, nr, 8))
    print('EXT4_IOC_GETVERSION (%s)\t%s' % (kind, word))
    word = ask(fd, number(WRITE, kind, nr + 1, 8), struct.pack('I', 77))[0]
    print('EXT4_IOC_SETVERSION (%s)\t%s' % (kind, word))
told('FITRIM', (ask(fd, number(BOTH, 'X', 121, 24), struct.pack('QQQ', 0, 2**64 - 1, 0))[0], None))
told('FIGETBSZ', ask(fd, 2), True)
told('FS_IOC_GETFSUUID', ask(fd, number(READ, 0x15, 0, 17)), True)
told('EXT4_IOC_GETFSUUID', ask(fd, number(READ, 'f', 44, 8), struct.pack('II', 0, 0)))
told('EXT4_IOC_SETFSUUID', ask(fd, number(WRITE, 'f', 44, 8), struct.pack('II', 0, 0)))
told('FS_IOC_GETFSSYSFSPATH', (ask(fd, number(READ, 0x15, 1, 129))[0], None))
fiemap = struct.pack('QQIII4x', 0, 2**64 - 1, 0, 0, 0)
told('FS_IOC_FIEMAP', (ask(fd, number(BOTH, 'f', 11, 32), fiemap)[0], None))
told('FIBMAP', ask(fd, 1), True)
told('EXT4_IOC_GROUP_EXTEND', (ask(fd, number(WRITE, 'f', 7, 8), struct.pack('Q', 1))[0], None))
told('EXT4_IOC_GROUP_ADD', (ask(fd, number(WRITE, 'f', 8, 40))[0], None))
blocks = struct.pack('Q', os.fstatvfs(fd).f_blocks * 100)
told('EXT4_IOC_RESIZE_FS', (ask(fd, number(WRITE, 'f', 16, 8), blocks)[0], None))
told('EXT4_IOC_MIGRATE', (ask(fd, number(NONE, 'f', 9, 0))[0], None))
told('EXT4_IOC_ALLOC_DA_BLKS', (ask(fd, number(NONE, 'f', 12, 0))[0], None))
told('EXT4_IOC_MOVE_EXT', (ask(fd, number(BOTH, 'f', 15, 40))[0], None))
told('EXT4_IOC_SWAP_BOOT', (ask(fd, number(NONE, 'f', 17, 0))[0], None))
told('EXT4_IOC_PRECACHE_EXTENTS', (ask(fd, number(NONE, 'f', 18, 0))[0], None))
told('EXT4_IOC_CLEAR_ES_CACHE', (ask(fd, number(NONE, 'f', 40, 0))[0], None))
told('EXT4_IOC_GETSTATE', (ask(fd, number(WRITE, 'f', 41, 4))[0], None))
told('EXT4_IOC_GET_ES_CACHE', (ask(fd, number(BOTH, 'f', 42, 32), fiemap)[0], None))
told('EXT4_IOC_CHECKPOINT', (ask(fd, number(WRITE, 'f', 43, 4), struct.pack('I', 4))[0], None))
told('FS_IOC_GETFSMAP', (ask(fd, number(BOTH, 'X', 59, 192))[0], None))
told('FS_IOC_SET_ENCRYPTION_POLICY', (ask(fd, number(READ, 'f', 19, 12))[0], None))
told('FS_IOC_GET_ENCRYPTION_POLICY', (ask(fd, number(WRITE, 'f', 21, 12))[0], None))
policy = struct.pack('Q', 24)
told('FS_IOC_GET_ENCRYPTION_POLICY_EX', (ask(fd, number(BOTH, 'f', 22, 9), policy)[0], None))
told('FS_IOC_GET_ENCRYPTION_KEY_STATUS', (ask(fd, number(BOTH, 'f', 26, 128))[0], None))
told('FS_IOC_ENABLE_VERITY', (ask(fd, number(WRITE, 'f', 133, 128))[0], None))
told('FS_IOC_MEASURE_VERITY', (ask(fd, number(BOTH, 'f', 134, 4))[0], None))
told('FS_IOC_READ_VERITY_METADATA', (ask(fd, number(BOTH, 'f', 135, 40))[0], None))
told('an ioctl that nobody has', (ask(fd, number(READ, 'f', 200, 8))[0], None))
"#;

/// The beginning of each question that has another answer, and what docs/LIMITS.md says of it.
const DIFFERENT: &[(&str, &str)] = &[
    ("flag 00080000", "`chattr -e`"),
    ("flag 02000000", "`+x`"),
    ("flag 00400000", "EOFBLOCKS"),
    (
        "flag 20000000 of a dir",
        "`+P` on a volume without `project`",
    ),
    ("flag 00004000", "`chattr +j`"),
    ("xflag 00000001", "XFS's flags"),
    ("xflag 00000100", "XFS's flags"),
    (
        "xflag 00000200 of a dir",
        "`+P` on a volume without `project`",
    ),
    ("xflag 00000400", "XFS's flags"),
    ("xflag 00002000", "XFS's flags"),
    ("xflag 00004000", "XFS's flags"),
    ("xflag 00008000", "`+x`"),
    ("FIGETBSZ", "FIGETBSZ"),
    ("FS_IOC_GETFSUUID", "FS_IOC_GETFSUUID"),
    ("EXT4_IOC_GETFSUUID", "EXT4_IOC_GETFSUUID"),
    ("EXT4_IOC_SETFSUUID", "EXT4_IOC_SETFSUUID"),
    ("FS_IOC_GETFSSYSFSPATH", "FS_IOC_GETFSSYSFSPATH"),
    ("FS_IOC_FIEMAP", "FIEMAP"),
    ("FIBMAP", "FIBMAP"),
    ("EXT4_IOC_GROUP_EXTEND", "EXT4_IOC_GROUP_EXTEND"),
    ("EXT4_IOC_GROUP_ADD", "EXT4_IOC_GROUP_ADD"),
    ("EXT4_IOC_RESIZE_FS", "EXT4_IOC_RESIZE_FS"),
    ("EXT4_IOC_MIGRATE", "EXT4_IOC_MIGRATE"),
    ("EXT4_IOC_ALLOC_DA_BLKS", "EXT4_IOC_ALLOC_DA_BLKS"),
    ("EXT4_IOC_MOVE_EXT", "EXT4_IOC_MOVE_EXT"),
    ("EXT4_IOC_SWAP_BOOT", "EXT4_IOC_SWAP_BOOT"),
    ("EXT4_IOC_PRECACHE_EXTENTS", "EXT4_IOC_PRECACHE_EXTENTS"),
    ("EXT4_IOC_CLEAR_ES_CACHE", "EXT4_IOC_CLEAR_ES_CACHE"),
    ("EXT4_IOC_GETSTATE", "EXT4_IOC_GETSTATE"),
    ("EXT4_IOC_GET_ES_CACHE", "EXT4_IOC_GET_ES_CACHE"),
    ("EXT4_IOC_CHECKPOINT", "EXT4_IOC_CHECKPOINT"),
    ("FS_IOC_GETFSMAP", "FS_IOC_GETFSMAP"),
];

/// Questions that a kernel may be too old for, or that its root may do elsewhere.
const MAYBE: [&str; 5] = [
    "flag 00004000",
    "FS_IOC_GETFSUUID",
    "EXT4_IOC_SETFSUUID",
    "FS_IOC_GETFSSYSFSPATH",
    "EXT4_IOC_GETFSUUID",
];

/// Returns the answer to each question on the volume that is mounted at `dir`.
fn answers(dir: &Path) -> BTreeMap<String, String> {
    let out = run(Command::new("python3").args(["-c", ASK]).arg(dir));
    let text = String::from_utf8(out.stdout).unwrap();
    let lines = text.lines().map(|line| line.split_once('\t').unwrap());
    lines
        .map(|(asked, answer)| (asked.to_owned(), answer.to_owned()))
        .collect()
}

/// A kernel mount, until this ends.
struct KernelMount<'a>(&'a Path);

impl Drop for KernelMount<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0).status();
    }
}

#[test]
fn each_ioctl_and_each_flag_beside_the_kernels_ext4() {
    need!(support::root_and_fuse());
    need!(support::have("python3"));
    let volume = Volume::new(32, &["-b", "1024", "-L", "old label"]);
    let (copy, dir) = (
        volume.scratch.path().join("copy.img"),
        volume.scratch.path().join("kernel"),
    );
    fs::copy(&volume.image, &copy).unwrap();
    fs::create_dir(&dir).unwrap();
    run(Command::new("mount")
        .args(["-o", "loop"])
        .args([&copy, &dir]));
    let kernel = KernelMount(&dir);
    let theirs = answers(&dir);
    drop(kernel);
    let server = volume.mount("");
    let ours = answers(&volume.dir);
    volume.unmount(server);

    let limits = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/LIMITS.md");
    let limits = fs::read_to_string(limits).unwrap();
    let mut wrong = Vec::new();
    let mut met = vec![false; DIFFERENT.len()];
    assert_eq!(ours.len(), theirs.len());
    for (asked, answer) in &ours {
        let theirs = &theirs[asked];
        if answer == theirs {
            continue;
        }
        match DIFFERENT
            .iter()
            .position(|(begin, _)| asked.starts_with(begin))
        {
            Some(n) => met[n] = true,
            None => wrong.push(format!("{asked}: ours {answer}, ext4 {theirs}")),
        }
    }
    for ((asked, told), met) in DIFFERENT.iter().zip(met) {
        if !met && !MAYBE.contains(asked) {
            wrong.push(format!("{asked}: is as in ext4"));
        } else if !limits.contains(told) {
            wrong.push(format!("{asked}: docs/LIMITS.md does not have: {told}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// `chattr +S` and `+D`: changes are there after a crash, although nobody synced. Changes beside
/// them are not.
#[test]
fn what_is_marked_synchronous_is_durable_at_once() {
    need!(support::root_and_fuse());
    need!(support::have("chattr"));
    let volume = Volume::new(32, &[]);
    let mount = || volume.mount("commit=300,dirty_expire=300");
    let server = mount();
    let (file, dir, plain) = (
        volume.path("file"),
        volume.path("dir"),
        volume.path("plain"),
    );
    fs::write(&file, "old").unwrap();
    fs::create_dir(&dir).unwrap();
    fs::create_dir(&plain).unwrap();
    run(Command::new("chattr").arg("+S").arg(&file));
    run(Command::new("chattr").arg("+D").arg(&dir));
    fs::File::open(&file).unwrap().sync_all().unwrap();

    fs::write(plain.join("lost"), "nobody asked").unwrap();
    server.crash(&volume.dir);
    let server = mount();
    assert!(!plain.join("lost").exists(), "this test shows nothing");

    fs::write(&file, "new content").unwrap();
    server.crash(&volume.dir);
    let server = mount();
    assert_eq!(fs::read_to_string(&file).unwrap(), "new content");

    fs::write(dir.join("made"), "").unwrap();
    fs::rename(dir.join("made"), dir.join("renamed")).unwrap();
    fs::create_dir(dir.join("sub")).unwrap();
    fs::hard_link(&file, dir.join("linked")).unwrap();
    server.crash(&volume.dir);
    let server = mount();
    let mut names: Vec<_> = fs::read_dir(&dir)
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    names.sort();
    assert_eq!(names, ["linked", "renamed", "sub"]);
    fs::remove_file(dir.join("renamed")).unwrap();
    fs::remove_dir(dir.join("sub")).unwrap();
    server.crash(&volume.dir);
    let server = mount();
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 1);
    volume.unmount(server);
}
