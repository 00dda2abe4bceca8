//! `stetfs tx --layer memory`: what a layer in memory must do besides what tx.rs asks of both
//! kinds.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};

use crate::run::{has, json, stetfs, tool, wait_until};
use crate::tx::{Ground, LAYERS, can_tx, ended, start, tree, tx};

fn in_memory(ground: &Ground, script: &str) -> crate::run::Ran {
    tx(&["--layer", "memory"], &ground.dir, script)
}

#[test]
fn holes_stay_holes() {
    if !can_tx() || !has("python3") {
        return;
    }
    let script = r#"python3 -c '
with open("f", "wb") as f:
    for at in [5, 1 << 30, (2 << 30) + 4097]:
        f.seek(at)
        f.write(b"data")
    f.truncate(3 << 30)
'"#;
    for layer in LAYERS {
        let ground = Ground::small();
        tx(&["--layer", layer], &ground.dir, script).ok();
        let file = fs::File::open(ground.path("f")).unwrap();
        let meta = file.metadata().unwrap();
        assert_eq!(meta.len(), 3 << 30, "{layer}");
        assert!(meta.blocks() < 256, "{layer}: {} blocks", meta.blocks());
        for at in [5, 1 << 30, (2 << 30) + 4097] {
            let mut bytes = [1; 12];
            file.read_exact_at(&mut bytes, at - 4).unwrap();
            assert_eq!(bytes, *b"\0\0\0\0data\0\0\0\0", "{layer}: {at}");
        }
        drop(file);
        fs::remove_file(ground.path("f")).unwrap();
        ground.end();
    }
}

#[test]
fn a_tree_may_be_deeper_than_paths_are_long() {
    if !can_tx() || !has("python3") {
        return;
    }
    let ground = Ground::new("64M", "scheme=stet");
    let make = |depth: usize, name: &str| {
        format!(
            "python3 -c 'import os
for i in range({depth}):
    os.mkdir(\"{name}\"); os.chdir(\"{name}\"); open(\"f\", \"w\").write(str(i))'"
        )
    };
    let name = "n".repeat(30);
    in_memory(&ground, &make(900, &name)).ok();
    let look = format!(
        "import os, sys; os.chdir(sys.argv[1])
for i in range(900):
    os.chdir(\"{name}\"); assert open(\"f\").read() == str(i)
assert os.listdir() == [\"f\"]"
    );
    tool("python3", &["-c", &look, &ground.dir]).ok();
    tool("rm", &["-r", ground.path(&name).to_str().unwrap()]).ok();
    in_memory(&ground, &make(1001, "n")).fails(125, &["n/n/n", "directories lie too deep"]);
    ground.end();
}

#[test]
fn what_has_no_room_is_refused_with_advice() {
    if !can_tx() {
        return;
    }
    let ground = Ground::small();
    ground.write("f", "old");
    let before = tree(Path::new(&ground.dir));
    let fill = |mib| format!("rm f; dd if=/dev/zero of=big bs=1M count={mib} status=none");
    let small = ["--layer", "memory", "--layer-size", "1M"];
    let full = ["memory was full", "--layer-size", "--layer volume"];
    tx(&small, &ground.dir, &fill(4)).fails(1, &full);
    let ran = tx(&small, &ground.dir, "rm f; exit 1");
    assert_eq!((ran.code, ran.err.as_str()), (1, ""));
    let words = ["big: No space left on device; nothing was changed"];
    in_memory(&ground, &fill(64)).fails(125, &words);
    assert_eq!(tree(Path::new(&ground.dir)), before);
    in_memory(&ground, &fill(4)).ok();
    assert_eq!(fs::metadata(ground.path("big")).unwrap().len(), 4 << 20);
    ground.end();
}

#[test]
fn who_is_killed_while_it_is_handed_over_leaves_all_or_nothing() {
    if !can_tx() {
        return;
    }
    let script = "rm f; for i in $(seq 4000); do echo $i >$i; done; echo new >0";
    for server_dies in [false, true] {
        let ground = Ground::new("128M", "scheme=jbd2,data=ordered");
        ground.write("f", "old");
        tool("sync", &[&ground.mount.dir]).ok();
        let stats = json(&stetfs(&["stats", "--json", &ground.dir]).ok());
        let pid = stats["server"]["pid"].as_i64().unwrap();
        let server = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
        let mut child = start("memory", &ground.dir, script);
        let upper = ground.path(".stetfs-tx/upper");
        let has_some = || fs::read_dir(&upper).is_ok_and(|mut dir| dir.next().is_some());
        wait_until("some of the layer is on the volume", || {
            has_some() || child.try_wait().unwrap().is_some()
        });
        if server_dies {
            kill_process(server, Signal::KILL).unwrap();
            ended(child);
            tool("umount", &["-l", &ground.mount.dir]);
            ground.mount.up(&["-o", "scheme=jbd2,data=ordered"]);
        } else {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        // The next transaction removes what this one has left.
        in_memory(&ground, "true").ok();
        let names = fs::read_dir(&ground.dir).unwrap().count();
        match names {
            1 => assert_eq!(ground.read("f"), "old"),
            4001 => assert_eq!(ground.read("4000"), "4000\n"),
            _ => panic!("{names} names"),
        }
        ground.end();
    }
}

/// A program that makes a layer from records, run by any user.
const RECORDS: &str = r#"
import fcntl, os, random, struct, sys
BEGIN_LAYER, LAY_OVER, FILL_LAYER = 0x8010e703, 0xc400e704, 0xfff0e705
DIR, REG, CHR = 0o40000, 0o100000, 0o20000

def record(kind, name=b"", data=b"", number=0):
    bytes_ = struct.pack("=HHIQ", kind, len(name), len(data), number) + name + data
    return bytes_ + bytes(-len(bytes_) % 8)
def make(name, mode, uid=os.getuid(), gid=os.getgid(), dev=(0, 0), links=0, target=b"", ns=9):
    file = struct.pack("=6I2q2I", mode, uid, gid, *dev, links, 1000, 2000, 8, ns)
    return record(1, name, file + target)
def data(text, at=0): return record(3, b"", text, at)
def xattr(name, value, goes_on=0): return record(4, name, value, goes_on)
def link(name, number): return record(2, name, b"", number)
root, done = make(b"", DIR | 0o755), record(5)

def begin():
    global lock, name
    for path in [".stetfs-tx", ".stetfs-tx/upper", ".stetfs-tx/trash"]:
        os.mkdir(path, 0o700)
    lock = os.open(".stetfs-tx/lock", os.O_RDWR | os.O_CREAT, 0o600)
    name = fcntl.ioctl(lock, BEGIN_LAYER, bytes(16))
def ask(number, what):
    try:
        fcntl.ioctl(os.open(".", os.O_RDONLY), number, what)
        return "done"
    except OSError as e:
        return (e.strerror + " " + what[16:1024].rstrip(b"\0").decode("latin1")).strip()
def fill(*records, of=None):
    batch = b"".join(records)
    assert len(batch) <= 15344
    batch += bytes(15344 - len(batch))
    return ask(FILL_LAYER, bytearray((of or name) + bytes(1008) + batch))
def lay_over():
    return ask(LAY_OVER, bytearray(name + bytes(1008)))

os.chdir(sys.argv[1])
"#;

fn records(dir: &str, user: &str, script: &str) -> String {
    // A Python that all users can run.
    const PYTHON: &str = "/usr/bin/python3";
    let who = ["--reuid", user, "--regid", user, "--clear-groups"];
    let script = format!("{RECORDS}{script}");
    let said = tool(
        "setpriv",
        &[&who[..], &[PYTHON, "-c", &script, dir]].concat(),
    )
    .ok();
    tool("rm", &["-rf", &format!("{dir}/.stetfs-tx")]).ok();
    said
}

fn can_forge() -> bool {
    can_tx() && has("setpriv") && has("/usr/bin/python3")
}

#[test]
fn records_make_a_layer() {
    if !can_forge() {
        return;
    }
    let ground = Ground::small();
    tool("chown", &["1000:1000", &ground.dir]).ok();
    let script = r#"
begin()
long = b"v" * 1000
print(fill(root, make(b"d", DIR | 0o2750), make(b"f", REG | 0o4640, links=1), data(b"begin")))
print(fill(data(b"", 9000), data(b"end", 8997), xattr(b"user.x", long, 1), xattr(b"user.x", long)))
print(fill(done, make(b"s", 0o120777, target=b"to"), done, done, link(b"l", 0)))
print(fill(make(b"w", CHR), done, make(b"p", 0o10600), done, done))
print(lay_over())
d, l = os.stat("d"), os.stat("l")
print(oct(d.st_mode), oct(l.st_mode), l.st_nlink, l.st_uid)
print(os.stat("d").st_mtime_ns, os.stat("d/f").st_mtime_ns, os.lstat("d/s").st_atime_ns)
text = open("l", "rb").read()
print(len(text), text[:5], text[-3:], set(text[5:-3]), os.getxattr("l", "user.x") == long + long)
print(sorted(os.listdir()), os.readlink("d/s"))
"#;
    let said = records(&ground.dir, "1000", script);
    let expected = "done
done
done
done
done
0o42750 0o104640 2 1000
2000000000009 2000000000009 1000000000008
9000 b'begin' b'end' {0} True
['.stetfs-tx', 'd', 'l', 'p'] to
";
    assert_eq!(said, expected);
    ground.end();
}

#[test]
fn records_give_nobody_rights() {
    if !can_forge() {
        return;
    }
    let ground = Ground::small();
    tool("chown", &["1000:1000", &ground.dir]).ok();
    let before = tree(Path::new(&ground.dir));
    for (asked, said) in [
        (
            "make(b'x', REG | 0o4755, uid=0)",
            "Operation not permitted x",
        ),
        (
            "make(b'x', REG | 0o644, gid=0)",
            "Operation not permitted x",
        ),
        (
            "make(b'x', CHR | 0o600, dev=(1, 3))",
            "Operation not permitted x",
        ),
        ("make(b'x', 0o60600)", "Operation not permitted x"),
        (
            "make(b'x', REG), xattr(b'trusted.x', b'')",
            "Operation not permitted x",
        ),
        (
            "make(b'x', REG), xattr(b'security.x', b'')",
            "Operation not permitted x",
        ),
        (
            "make(b'd', DIR), make(b'x', REG, uid=1)",
            "Operation not permitted d/x",
        ),
        ("make(b'.', REG)", "File exists ."),
        ("make(b'..', DIR)", "File exists .."),
        ("make(b'a/b', REG)", "Invalid argument a/b"),
        ("make(b'', REG)", "No such file or directory"),
        ("make(b'n' * 256, REG)", "File name too long nnn"),
        ("make(b'x', REG), data(b'x', 1 << 62)", "File too large x"),
        (
            "make(b'x', REG), data(b'x', (1 << 64) - 1)",
            "File too large x",
        ),
        (
            "make(b'x', REG), data(b'', (1 << 64) - 1)",
            "File too large x",
        ),
        (
            "make(b'x', REG), xattr(b'user.x', b'v' * 9000)",
            "No space left on device x",
        ),
        // Records that make no sense where they are.
        ("make(b'x', REG), make(b'y', REG)", "Invalid argument x"),
        ("make(b'd', DIR), data(b'x')", "Invalid argument d"),
        ("make(b'x', 0o10600), data(b'x')", "Invalid argument x"),
        ("make(b'x', REG, target=b'x')", "Invalid argument"),
        ("make(b'x', REG, ns=10 ** 9)", "Invalid argument"),
        ("make(b'x', 1 << 16)", "Invalid argument"),
        ("make(b'x', 0o170000)", "Invalid argument x"),
        ("make(b'x', REG), done, link(b'y', 0)", "Invalid argument"),
        (
            "make(b'x', REG, links=1), done, link(b'y', 1 << 63)",
            "Invalid argument",
        ),
        ("done, done", "Invalid argument"),
        ("done, make(b'x', REG)", "Invalid argument"),
        ("record(6)", "Invalid argument"),
        ("struct.pack('=HHIQ', 3, 0, 20000, 0)", "Invalid argument"),
        ("struct.pack('=HHIQ', 1, 65535, 48, 0)", "Invalid argument"),
        ("of=bytes(16)", "Operation canceled"),
    ] {
        let script = format!("begin(); print(fill(root, {asked}))");
        let told = records(&ground.dir, "1000", &script);
        let told = told.trim_end();
        assert!(told.starts_with(said), "{asked}: {told}");
        assert_eq!(tree(Path::new(&ground.dir)), before, "{asked}");
    }
    for (script, said) in [
        ("begin(); print(fill(make(b'x', REG)))", "Invalid argument"),
        ("begin(); print(fill(make(b'', REG)))", "Invalid argument"),
        ("begin(); print(fill(done))", "Invalid argument"),
        (
            "begin(); os.close(lock); print(fill(root))",
            "Operation canceled",
        ),
        ("name = bytes(16); print(fill(root))", "Operation canceled"),
        (
            "os.mkdir('.stetfs-tx'); name = bytes(16); print(fill(root))",
            "Operation canceled",
        ),
        (
            "begin(); os.chown('.stetfs-tx', 0, 0); os.setuid(1000); print(fill(root))",
            "Operation not permitted",
        ),
    ] {
        let user = if script.contains("setuid") {
            "0"
        } else {
            "1000"
        };
        let told = records(&ground.dir, user, script);
        assert_eq!(told.trim_end(), said, "{script}");
        assert_eq!(tree(Path::new(&ground.dir)), before, "{script}");
    }
    ground.end();
}

#[test]
fn damaged_records_harm_nobody() {
    if !can_forge() {
        return;
    }
    const SEED: u32 = 1;
    let ground = Ground::small();
    let before = tree(Path::new(&ground.dir));
    // Run as root, who may do everything. Damage is small, since the first damage ends most
    // batches.
    let script = format!(
        r#"
import collections, shutil
random.seed({SEED})
good = [root, make(b"d", DIR | 0o755), make(b"f", REG | 0o644, links=1), data(b"text" * 40),
    data(b"", 5000), xattr(b"user.x", b"value", 1), xattr(b"user.x", b"value"), done,
    make(b"s", 0o120777, target=b"target"), done, done, link(b"l", 0), make(b"c", CHR, dev=(1, 3)),
    done, make(b"e", DIR | 0o700), xattr(b"trusted.y", b""), done, done]
said = collections.Counter()
for n in range(600):
    begin()
    batch = bytearray(b"".join(good[:random.randint(1, len(good))]))
    for _ in range(random.choice([1, 1, 1, 2, 8])):
        at = random.randrange(len(batch))
        if random.random() < 0.5:
            at = at // 8 * 8 + random.randrange(4)
        byte = random.choice([0, 1, 2, 3, 4, 5, 0xff, random.randrange(256)])
        batch[min(at, len(batch) - 1)] = byte
    said[fill(bytes(batch)).split(" /")[0][:16]] += 1
    said[fill(bytes(batch)).split(" /")[0][:16]] += 1
    os.close(lock)
    try: shutil.rmtree(".stetfs-tx")
    except OSError as e: print(e, bytes(batch)); raise
assert said["done"] > 50 and said["Invalid argument"] > 50, said
begin()
print(fill(*good), lay_over(), sorted(os.listdir()))
"#
    );
    let said = records(&ground.dir, "0", &script);
    let expected = "done done ['.stetfs-tx', 'c', 'd', 'e', 'l']\n";
    assert_eq!(said, expected, "seed {SEED}");
    tool("sh", &["-ec", &format!("rm -r {}/*", ground.dir)]).ok();
    let after = tree(Path::new(&ground.dir));
    assert_eq!(
        after.keys().collect::<Vec<_>>(),
        before.keys().collect::<Vec<_>>()
    );
    ground.end();
}
