//! `stetfs tx`: a command's changes happen at once or not at all. Three judges: the same command on
//! a directory of the machine's own file system, e2fsck, and images that are copied while the
//! server is stopped at random moments.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::mounted::{Mount, can_mount};
use crate::run::{Lab, Ran, STETFS, has, json, stetfs, tool, wait_until};

/// True if transactions can be made here.
pub(crate) fn can_tx() -> bool {
    if !can_mount() {
        return false;
    }
    let all = fs::read_to_string("/proc/filesystems").unwrap();
    let can = all.contains("\toverlay\n") && rustix::process::geteuid().is_root();
    if !can {
        eprintln!("SKIPPED: transactions of commands are tested as root, with overlayfs");
    }
    can
}

/// A mounted volume with an empty directory.
pub(crate) struct Ground {
    pub(crate) mount: Mount,
    pub(crate) dir: String,
}

impl Ground {
    pub(crate) fn new(size: &str, options: &str) -> Self {
        let lab = Lab::new();
        // Ordinary users use it too.
        fs::set_permissions(lab.path("."), Permissions::from_mode(0o755)).unwrap();
        let image = lab.str("disk.img");
        stetfs(&["mkfs", &image, "--size", size]).ok();
        let mount = Mount::of(lab, image);
        mount.up(&["-o", options]);
        let dir = mount.file("dir");
        fs::create_dir(&dir).unwrap();
        Self { mount, dir }
    }

    pub(crate) fn small() -> Self {
        Self::new("32M", "scheme=jbd2,data=ordered")
    }

    fn tx(&self, script: &str) -> Ran {
        tx(&[], &self.dir, script)
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        Path::new(&self.dir).join(name)
    }

    /// Asserts that nothing of a transaction is left, also after a new mount, and that e2fsck finds
    /// nothing.
    #[track_caller]
    pub(crate) fn end(&self) {
        assert!(!self.path(".stetfs-tx").exists());
        let before = tree(Path::new(&self.dir));
        self.mount.down();
        self.mount.up(&[]);
        assert_eq!(tree(Path::new(&self.dir)), before, "mounted anew");
        self.mount.down();
    }
}

/// Runs a script in a directory, as a transaction on it.
pub(crate) fn tx(options: &[&str], dir: &str, script: &str) -> Ran {
    let script = format!("cd '{dir}'; {script}");
    let mut all = vec!["tx"];
    all.extend(options);
    all.extend([dir, "--", "sh", "-ec", &script]);
    stetfs(&all)
}

/// Starts a script as a transaction, and returns while it runs.
pub(crate) fn start(layer: &str, dir: &str, script: &str) -> Child {
    let script = format!("cd '{dir}'; {script}");
    Command::new(STETFS)
        .args(["tx", "--layer", layer, dir, "--", "sh", "-ec", &script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Waits until the script prints a line.
pub(crate) fn said(child: &mut Child) -> String {
    let mut line = String::new();
    let out = child.stdout.as_mut().unwrap();
    BufReader::new(out).read_line(&mut line).unwrap();
    line
}

pub(crate) fn ended(child: Child) -> (Option<i32>, String) {
    let out = child.wait_with_output().unwrap();
    let err = String::from_utf8_lossy(&out.stderr).into_owned();
    (out.status.code(), err)
}

/// Both kinds of layers.
pub(crate) const LAYERS: [&str; 2] = ["volume", "memory"];

/// Describes everything below a directory that is the same in each run: types, modes, owners,
/// links, contents, attributes.
pub(crate) fn tree(dir: &Path) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(at) = dirs.pop() {
        let entries = fs::read_dir(&at).unwrap().map(|e| e.unwrap().path());
        for path in entries.chain((at == dir).then(|| dir.to_owned())) {
            let meta = fs::symlink_metadata(&path).unwrap();
            let content = match meta.mode() >> 12 {
                0o10 => fs::read(&path).unwrap(),
                0o12 => fs::read_link(&path).unwrap().as_os_str().as_bytes().into(),
                _ => Vec::new(),
            };
            let mut names = vec![0; 65_536];
            let len = rustix::fs::llistxattr(&path, &mut names[..]).unwrap();
            let mut xattrs = Vec::new();
            let names = names[..len].split(|b| *b == 0);
            for name in names.filter(|n| !n.is_empty()) {
                let mut value = vec![0; 65_536];
                let len = rustix::fs::lgetxattr(&path, name, &mut value[..]).unwrap();
                let value = &value[..len];
                xattrs.push(format!("{}={value:?}", name.escape_ascii()));
            }
            xattrs.sort();
            // Only times that were set, which are the same in each run.
            let made = (1_500_000_000, 0);
            let mtime = made.min((meta.mtime(), meta.mtime_nsec()));
            let links = if meta.is_dir() { 0 } else { meta.nlink() };
            let name = path.strip_prefix(dir).unwrap().display().to_string();
            let line = format!(
                "{:o} {}:{} {links} {mtime:?} {:x} {} {xattrs:?}",
                meta.mode(),
                meta.uid(),
                meta.gid(),
                meta.rdev(),
                content.escape_ascii(),
            );
            all.insert(name, line);
            if meta.is_dir() && path != dir {
                dirs.push(path);
            }
        }
    }
    all
}

/// The directory's content before each case.
const BEFORE: &str = "mkdir d d/e big t; echo one >f; echo two >g; echo three >d/h; echo 4 >d/e/i
    for i in 1 2 3 4 5 6 7 8 9; do mkdir big/$i; echo $i >big/$i/f; done
    ln -s f link; chmod 640 g; chown 12:34 g; setfattr -n user.a -v b f; mkfifo t/p; echo t >t/t
    setfattr -n user.a -v b big; setfattr -n trusted.b -v c big; setfacl -m u:7:rwx,g:8:r d
    setfacl -d -m u:9:rx t; chmod 770 t/t";

/// Changes of every kind.
const CASES: &[&str] = &[
    "true",
    "echo new >n; mkdir m; echo in >m/n; ln -s n m/s; mkfifo m/p; mknod m/c c 1 3",
    "echo new >f",
    "echo more >>f; echo more >>d/e/i",
    "truncate -s 1 f; truncate -s 100k g; : >d/h",
    "rm f; rm d/e/i",
    "rm -r big; rm -r d",
    "rm -r big; mkdir big; echo other >big/1",
    "rm -r d; echo file >d; rm f; mkdir f; echo x >f/x",
    "rm f; ln -s g f; rm link; echo file >link; rm t/p; mkdir t/p",
    "mv f f2; mv g d/g; mv d/h f; mv link d",
    "mv big big2; mv d big2/1",
    "mv d/e .; rm d/h; rmdir d; mv e d",
    "chmod 700 d; chmod 2755 big; chown 5:6 t; chmod 4711 f; chmod 0 big/3",
    "touch -d 2001-02-03 d f link; touch -h -d 2004-05-06 link",
    "ln f f2; ln f d/f3; ln d/h h2",
    "setfattr -n user.x -v y g; setfattr -x user.a f; mkdir x; setfattr -n user.z -v w x",
    "setfattr -n user.n -v new d; setfattr -n user.a -v other big; setfattr -x trusted.b big
        setfattr -n user.s -v \"$(seq 900)\" t; setfattr -n user.a -v root .",
    "setfacl -m u:7:r,u:11:x d; setfacl -b t; setfacl -m u:7:rwx big; setfacl -d -m g:4:rwx big/1
        setfacl -m u:5:rw .",
    "setfacl -b d; setfattr -n user.x -v y d; chmod 2750 d; chown 3:4 d; echo x >t/inherits
        chmod 777 big; setfacl -k t; mkdir t/not; setfacl -d -m u:2:r t; mkdir t/does",
    "setfattr -n trusted.t -v y g; setfattr -n user.x -v y link || true",
    "echo a >f; mv f k; echo b >f; rm g; mv k g",
    "mkdir -p a/b/c/d/e; echo x >a/b/c/d/e/f; rm -r a/b/c; mkdir a/b/c",
    "for i in $(seq 1000); do echo $i >n$i; done; for i in $(seq 500); do echo 2 >n$i; done",
    "dd if=/dev/zero of=z bs=1M count=3 status=none; dd if=/dev/zero of=z bs=4k seek=9 count=1 \
        conv=notrunc status=none; fallocate -l 1M y; sync z",
    "rm -r d/e; mkdir d/e; rmdir d/e; rm d/h; rmdir d",
    "chmod 755 t; rm t/*; rmdir t; mkdir t; chown 1:1 t; echo x >t/t",
    "python3 -c 'import mmap
f = open(\"f\", \"r+b\"); m = mmap.mmap(f.fileno(), 0); f.close(); m[0:3] = b\"MAP\"'",
    ": >e; chmod 6755 e; mkdir -m 1777 s; mkdir -m 2775 s/g; chown :8 s/g; echo x >s/g/y
        chown 3:4 s/g/y; chmod 6754 s/g/y; mknod b b 7 300; echo x >0; chmod 0 0; mkdir -m 0 00",
    "mkdir l; echo 1 >l/a; ln l/a l/b; ln l/a c; ln -s q l/s; ln -P l/s l/s2; mkfifo l/p
        ln l/p p2; ln f l/f; echo 2 >>f; ln d/h l/h; rm d/h; ln -s \"$(seq -s / 900)\" long",
    "touch -d '2001-02-03 04:05:06.123456789' d/h n; mkdir q; echo x >q/x; rm q/x
        touch -d '2003-01-01 00:00:00.000000001' q . ; touch -h -d '1901-12-14 1:2:3.4' link",
    "echo x >t/u; setfacl -b t/u; mkdir t/v; setfacl -b t/v; echo y >t/v/w; cp -a t t2
        setfattr -n security.capability -v 0x0100000200200000000000000000000000000000 f
        echo x >cap; chown 5:6 cap; setfattr -n user.e cap; setfattr -n trusted.l -v \
        \"$(seq 700)\" cap; setfattr -n security.capability -v \
        0x0100000200200000000000000000000000000000 cap",
    "seq 90000 >many; for n in 15327 15328 15329 4096 30656; do seq 9999 | head -c $n >$n; done
        seq 90000 >>many; truncate -s 300k h; echo mid | dd of=h bs=1 seek=100000 conv=notrunc \
        status=none; truncate -s 5000 tail; echo x >>tail; truncate -s 50000 tail",
    "python3 -c 'import os, socket
socket.socket(socket.AF_UNIX).bind(\"so\")
for name in [b\"\\xff\\n \\x01\", b\"n\" * 255, b\"...\", b\"-\"]:
    with open(name, \"w\") as f: f.write(\"x\")
    os.mkdir(name[:254] + b\"d\")'",
];

/// Runs each case as a transaction and on a directory of the machine; both must become the same,
/// also after a new mount.
fn compare(layer: &str, options: &str) {
    let ground = Ground::new("128M", options);
    let plain = Lab::new();
    let mut pairs = Vec::new();
    for (number, case) in CASES.iter().enumerate() {
        let here = plain.path(&number.to_string());
        let there = ground.path(&number.to_string());
        for dir in [&here, &there] {
            fs::create_dir(dir).unwrap();
            // New files in the directory inherit something, too.
            let inherits = "setfacl -d -m u:9:rx .";
            let script = format!("cd '{}'; {BEFORE}; {inherits}", dir.display());
            tool("sh", &["-ec", &script]).ok();
        }
        // Let the kernel look up everything of which it must learn changes.
        let before = tree(&here);
        assert_eq!(tree(&there), before, "before {case}");
        let held = fs::File::open(there.join("f")).unwrap();
        let script = format!("cd '{}'; {case}", here.display());
        tool("sh", &["-ec", &script]).ok();
        let ran = tx(&["--layer", layer], there.to_str().unwrap(), case);
        assert_eq!(ran.code, 0, "{case}: {ran:#?}");
        // Look up names first: reading the directories would tell the kernel what they hold.
        let after = tree(&here);
        for name in before.keys().chain(after.keys()) {
            let of = |dir: &Path| {
                let path = dir.join(name);
                let kind = fs::symlink_metadata(&path).ok().map(|meta| meta.mode());
                let is_file = kind.is_some_and(|mode| mode >> 12 == 0o10);
                (kind, is_file.then(|| fs::read(&path).unwrap()))
            };
            assert_eq!(of(&there), of(&here), "{case}: {name}");
        }
        assert_eq!(tree(&there), after, "{case}");
        drop(held);
        pairs.push((here, there, case));
    }
    ground.mount.down();
    ground.mount.up(&["-o", options]);
    for (here, there, case) in pairs {
        assert_eq!(tree(&there), tree(&here), "mounted anew: {case}");
    }
    ground.mount.down();
}

#[test]
fn every_kind_of_change_happens_as_without_a_transaction() {
    if can_tx() && has("setfattr") && has("setfacl") && has("python3") {
        compare("volume", "scheme=jbd2,data=ordered");
    }
}

#[test]
fn so_it_does_with_other_schemes_and_caches() {
    if can_tx() && has("setfattr") && has("setfacl") && has("python3") {
        compare("volume", "scheme=stet,nowriteback");
    }
}

#[test]
fn so_it_does_from_a_layer_in_memory() {
    if can_tx() && has("setfattr") && has("setfacl") && has("python3") {
        compare("memory", "scheme=jbd2,data=ordered");
    }
}

/// Returns what a transaction without effect must leave of a directory's `stat`.
pub(crate) fn times(path: &str) -> (i64, i64, u32) {
    let meta = fs::metadata(path).unwrap();
    (meta.mtime(), meta.mtime_nsec(), meta.mode())
}

#[test]
fn a_command_that_fails_leaves_nothing() {
    if !can_tx() {
        return;
    }
    let ground = Ground::small();
    ground.write("f", "old");
    let before = (tree(Path::new(&ground.dir)), times(&ground.dir));
    let all = "rm f; mkdir d; echo new >f; chmod 700 .";
    for (layer, end, code, words) in [
        ("volume", "exit 3", 3, vec![]),
        ("memory", "exit 3", 3, vec![]),
        ("volume", "kill -9 $$", 137, vec![]),
        (
            "memory",
            "sleep 3 >/dev/null 2>&1 </dev/null & exit 0",
            125,
            vec!["left processes that use it", "(sleep)"],
        ),
    ] {
        let ran = tx(&["--layer", layer], &ground.dir, &format!("{all}; {end}"));
        ran.fails(code, &words);
        let now = (tree(Path::new(&ground.dir)), times(&ground.dir));
        assert_eq!(now, before, "{end}");
    }
    let run = |words: &[&str]| {
        let mut all = vec!["tx", ground.dir.as_str(), "--"];
        all.extend(words);
        stetfs(&all)
    };
    run(&["no-such-command"]).fails(127, &["no-such-command: No such file"]);
    run(&["/etc/passwd"]).fails(126, &["/etc/passwd: Permission denied"]);
    stetfs(&["tx", &ground.dir]).fails(2, &[]);
    stetfs(&["tx", "/proc", "--", "true"]).fails(125, &["not on a mounted stetfs volume"]);
    // A signal to stetfs ends the command, and the transaction.
    for layer in LAYERS {
        let script = format!("{all}; trap 'exit 0' TERM; echo x; read y");
        let mut child = start(layer, &ground.dir, &script);
        said(&mut child);
        kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
        assert_eq!(ended(child).0, Some(128 + 15));
        let now = (tree(Path::new(&ground.dir)), times(&ground.dir));
        assert_eq!(now, before);
    }
    ground.end();
}

#[test]
fn who_is_killed_leaves_nothing_and_the_next_one_works() {
    if !can_tx() {
        return;
    }
    let ground = Ground::small();
    for (layer, next) in LAYERS.iter().zip(["memory", "volume"]) {
        ground.write("f", "old");
        let mut child = start(
            layer,
            &ground.dir,
            "rm f; mkdir d; chmod 0 d; echo x; read y",
        );
        assert_eq!(said(&mut child), "x\n");
        child.kill().unwrap();
        drop(child.stdin.take());
        child.wait().unwrap();
        assert_eq!(ground.read("f"), "old");
        assert!(
            ground.path(".stetfs-tx").exists(),
            "there is nothing to remove"
        );
        tx(&["--layer", next], &ground.dir, "echo new >f").ok();
        assert_eq!(ground.read("f"), "new\n");
        assert!(!ground.path("d").exists());
    }
    ground.end();
}

#[test]
fn one_at_a_time() {
    if !can_tx() {
        return;
    }
    let ground = Ground::small();
    let other = ground.mount.file("other");
    fs::create_dir(&other).unwrap();
    let mut first = start("memory", &ground.dir, "echo 1 >f; echo x; read y");
    said(&mut first);
    for dir in [&ground.dir, &other] {
        let words = ["another transaction is under way", "--wait"];
        tx(&[], dir, "echo 2 >f").fails(125, &words);
    }
    assert!(!Path::new(&other).join(".stetfs-tx").exists());
    // Nobody but the transaction sees anything before the end.
    assert!(!ground.path("f").exists());
    std::thread::scope(|s| {
        let waits = s.spawn(|| tx(&["--wait"], &ground.dir, "cat f; echo 3 >f"));
        sleep(Duration::from_millis(200));
        assert!(!waits.is_finished());
        drop(first.stdin.take());
        // `read` at the end of its input fails.
        assert_eq!(ended(first).0, Some(1));
        waits.join().unwrap().fails(1, &["f: No such file"]);
    });
    ground.tx("echo 1 >f").ok();
    ground.end();
}

#[test]
fn changes_of_others_are_conflicts() {
    if !can_tx() {
        return;
    }
    let cases: &[(&str, &str, &str)] = &[
        ("echo tx >f", "echo other >f", "f was changed"),
        ("echo tx >f", "rm f", "f was changed"),
        ("rm f", "echo other >>f", "f was changed"),
        ("echo tx >n", "echo other >n", "n was changed"),
        ("rm -r d", "echo other >d/e/new", "d/e was changed"),
        ("rm -r d", "echo other >>d/e/g", "d/e/g was changed"),
        ("mv d k", "rm d/e/g", "d/e was changed"),
        ("chmod 700 d", "chmod 711 d", "d was changed"),
        ("echo tx >d/e/g", "rm -r d", "was changed"),
        ("mkdir .stetfs-tx", "true", "reserves this name"),
    ];
    let ground = Ground::small();
    let both = LAYERS
        .iter()
        .flat_map(|layer| cases.iter().map(move |case| (layer, case)));
    for (number, (layer, (own, others, words))) in both.enumerate() {
        let dir = ground.path(&number.to_string());
        let dir = dir.to_str().unwrap();
        let setup = format!("mkdir -p {dir}/d/e; cd {dir}; echo f >f; echo g >d/e/g");
        tool("sh", &["-ec", &setup]).ok();
        let script = format!("{own}; echo x >also; echo x; read y || true");
        let mut child = start(layer, dir, &script);
        said(&mut child);
        tool("sh", &["-ec", &format!("cd {dir}; {others}")]).ok();
        let after = |dir| {
            let mut tree = tree(Path::new(dir));
            tree.retain(|name, _| !name.starts_with(".stetfs-tx"));
            tree
        };
        let before = after(dir);
        drop(child.stdin.take());
        let (code, err) = ended(child);
        assert_eq!(code, Some(125), "{own} and {others}: {err}");
        assert!(err.contains(words), "{own} and {others}: {err}");
        assert_eq!(after(dir), before, "{own} and {others}");
    }
    // A change elsewhere is no conflict, even in the same directory.
    for layer in LAYERS {
        let script = "echo x >mine; rm -r 0; echo x; read y || true";
        let mut child = start(layer, &ground.dir, script);
        said(&mut child);
        ground.write("theirs", layer);
        ground.write("1/also", "other");
        let theirs = times(&ground.dir);
        drop(child.stdin.take());
        assert_eq!(ended(child), (Some(0), String::new()));
        assert_eq!(ground.read("theirs"), layer);
        assert_eq!(ground.read("mine"), "x\n");
        assert!(times(&ground.dir) >= theirs, "the times of what others did");
        fs::remove_file(ground.path("mine")).unwrap();
        fs::create_dir(ground.path("0")).unwrap();
    }
    ground.end();
}

#[test]
fn a_dry_run_lists_and_changes_nothing() {
    if !can_tx() {
        return;
    }
    let ground = Ground::small();
    tool("sh", &["-ec", &format!("cd {}; {BEFORE}", ground.dir)]).ok();
    let before = (tree(Path::new(&ground.dir)), times(&ground.dir));
    let script = "echo said; echo new >n; echo new >f; rm g; rm -r big; chmod 700 t; mkdir m
        echo x >m/x; rm -r d; mkdir d; ln -s x d/s; printf x >\"a\nb\"";
    let expected = "said
added      a\\nb
removed    big/
replaced   d/
added      d/s
changed    f
removed    g
added      m/
added      m/x
added      n
attributes t/
";
    for layer in LAYERS {
        let ran = tx(&["--dry-run", "--layer", layer], &ground.dir, script);
        assert_eq!(ran.ok(), expected, "{layer}");
    }
    let ran = tx(&["-n", "--json"], &ground.dir, script);
    assert_eq!(ran.err, "said\n");
    let list = json(&ran.ok());
    assert_eq!(list.as_array().unwrap().len(), 10);
    let f = list.as_array().unwrap().iter().find(|l| l["path"] == "f");
    let expected = serde_json::json!({"change": "changed", "kind": "file", "path": "f"});
    assert_eq!(f.unwrap(), &expected);
    assert_eq!(tx(&["-n"], &ground.dir, "true").ok(), "");
    assert_eq!(
        tx(&["-n", "--layer", "memory"], &ground.dir, "true").ok(),
        ""
    );
    let now = (tree(Path::new(&ground.dir)), times(&ground.dir));
    assert_eq!(now, before);
    ground.end();
}

#[test]
fn an_ordinary_user_can_in_directories_of_their_own() {
    if !can_tx() || !has("setpriv") || !has("setfacl") {
        return;
    }
    for layer in LAYERS {
        let ground = Ground::small();
        let setup = format!("cd {}; {BEFORE}; chown -hR 1000:1000 .", ground.dir);
        tool("sh", &["-ec", &setup]).ok();
        let as_user = |dir: &str, script: &str| {
            let script = format!("cd '{dir}'; {script}");
            let tx = [STETFS, "tx", "--layer", layer, dir, "--", "sh", "-ec"];
            let who = ["--reuid", "1000", "--regid", "1000", "--groups", "50"];
            tool("setpriv", &[&who[..], &tx, &[&script]].concat())
        };
        // In memory, entries for other users and groups, which the ACLs of `t` and `d` have, are
        // not kept.
        if layer == "memory" {
            as_user(&ground.dir, "chmod 700 t").fails(1, &["'t': Invalid argument"]);
            let setup = format!("cd {}; setfacl -k t; setfacl -b d", ground.dir);
            tool("sh", &["-ec", &setup]).ok();
        }
        let script = "id -u; rm -r big; mkdir big; echo new >f; chmod 700 t; rm g; chmod 4755 f
            rm -r d; mkdir d; echo x >d/x; ln d/x x; ln -s x s; mkfifo p
            setfattr -n user.a -v b x";
        let ran = as_user(&ground.dir, script);
        if ran.err.contains("a namespace of users") {
            eprintln!(
                "SKIPPED: ordinary users have no namespaces here: {}",
                ran.err
            );
            return;
        }
        assert_eq!(ran.ok(), "1000\n");
        assert_eq!(ground.read("f"), "new\n");
        assert!(!ground.path("g").exists() && !ground.path("big/1").exists());
        let of = |name: &str| {
            let meta = fs::symlink_metadata(ground.path(name)).unwrap();
            (meta.mode() & 0o7777, meta.uid(), meta.gid())
        };
        assert_eq!(of("t"), (0o700, 1000, 1000));
        assert_eq!(of("f"), (0o4755, 1000, 1000));
        assert_eq!(of("s").1, 1000);
        assert!(
            tree(Path::new(&ground.dir))
                .values()
                .all(|line| !line.contains("overlay"))
        );
        // A user can make none in directories of others.
        fs::create_dir(ground.path("roots")).unwrap();
        let roots = ground.path("roots");
        as_user(roots.to_str().unwrap(), "true").fails(125, &["belongs to another user"]);
        as_user(&ground.dir, "echo x >roots/x").fails(2, &["roots/x"]);
        // In the namespace the user has only the first group.
        let setup = format!("cd {}; echo x >other; chgrp 50 other", ground.dir);
        tool("sh", &["-ec", &setup]).ok();
        as_user(&ground.dir, "echo y >>other").fails(2, &["other"]);
        tool("chgrp", &["50", &ground.dir]).ok();
        let ran = as_user(&ground.dir, "true");
        match layer {
            "volume" => assert_eq!(ran.ok(), ""),
            _ => ran.fails(
                125,
                &["cannot have the directory's attributes", "--layer volume"],
            ),
        }
        ground.end();
    }
}

/// A forged layer, laid over the directory by a user who may not do so.
const FORGED: &str = r#"
import fcntl, os, sys
BEGIN_LAYER, LAY_OVER = 0x8010e703, 0xc400e704
os.chdir(sys.argv[1])
for path in [".stetfs-tx", ".stetfs-tx/upper", ".stetfs-tx/trash"]:
    os.mkdir(path)
exec(sys.argv[2])
lock = os.open(".stetfs-tx/lock", os.O_RDWR | os.O_CREAT)
name = fcntl.ioctl(lock, BEGIN_LAYER, bytes(16))
what = bytearray(name + bytes(1008))
try:
    fcntl.ioctl(os.open(".", os.O_RDONLY), LAY_OVER, what)
    print("laid over")
except OSError as e:
    print(e.strerror, bytes(what[16:]).rstrip(b"\0").decode())
"#;

#[test]
fn a_layer_gives_nobody_rights() {
    // A Python that all users can run.
    const PYTHON: &str = "/usr/bin/python3";
    if !can_tx() || !has("setpriv") || !has(PYTHON) {
        return;
    }
    let ground = Ground::small();
    let setup = "mkdir roots sticky; echo x >roots/f; chmod 1777 sticky; echo x >sticky/f";
    tool(
        "sh",
        &["-ec", &format!("cd {}; {setup}; chown 1000 .", ground.dir)],
    )
    .ok();
    let forge = |forged: &str| {
        let who = ["--reuid", "1000", "--regid", "1000", "--clear-groups"];
        let mut all = who.to_vec();
        all.extend([PYTHON, "-c", FORGED, &ground.dir, forged]);
        let said = tool("setpriv", &all).ok();
        tool("rm", &["-r", ground.path(".stetfs-tx").to_str().unwrap()]).ok();
        said
    };
    let before = tree(Path::new(&ground.dir));
    for (forged, said) in [
        (
            "os.mkdir('.stetfs-tx/upper/roots'); open('.stetfs-tx/upper/roots/new', 'w')",
            "Permission denied roots/new\n",
        ),
        (
            "os.mkdir('.stetfs-tx/upper/sticky'); open('.stetfs-tx/upper/sticky/f', 'w')",
            "Operation not permitted sticky/f\n",
        ),
        (
            "os.mkdir('.stetfs-tx/upper/roots', 0o700)",
            "Operation not permitted roots\n",
        ),
        (
            "os.mkdir('.stetfs-tx/upper/roots'); os.mknod('.stetfs-tx/upper/roots/f', 0o20000, 0)",
            "Permission denied roots/f\n",
        ),
    ] {
        assert_eq!(forge(forged), said, "{forged}");
        assert_eq!(tree(Path::new(&ground.dir)), before, "{forged}");
    }
    // What the layer's owner may do, is done.
    let said = forge("os.chmod('.stetfs-tx/upper', 0o755); open('.stetfs-tx/upper/new', 'w')");
    assert_eq!(said, "laid over\n");
    assert!(ground.path("new").exists());
    ground.end();
}

#[test]
fn any_name_of_a_directory_will_do() {
    if !can_tx() {
        return;
    }
    let ground = Ground::small();
    let dir = ground.path("a,b:c\\d upper=\"e f");
    let dir = dir.to_str().unwrap();
    fs::create_dir(dir).unwrap();
    for layer in LAYERS {
        tx(&["--layer", layer], dir, &format!("echo {layer} >f")).ok();
        let f = fs::read_to_string(format!("{dir}/f")).unwrap();
        assert_eq!(f, format!("{layer}\n"));
    }
    // The root of the volume as DIR, and a working directory below it.
    let script = "pwd; echo y >g";
    let out = Command::new(STETFS)
        .args(["tx", &ground.mount.dir, "--", "sh", "-ec", script])
        .current_dir(dir)
        .output()
        .unwrap();
    assert_eq!(
        String::from_utf8_lossy(&out.stdout),
        format!("{dir}\n"),
        "{out:?}"
    );
    assert_eq!(fs::read_to_string(format!("{dir}/g")).unwrap(), "y\n");
    assert!(!Path::new(&ground.mount.file(".stetfs-tx")).exists());
    ground.end();
}

#[test]
fn what_one_transaction_does_not_hold_is_refused() {
    if !can_tx() {
        return;
    }
    let lab = Lab::new();
    let image = lab.str("disk.img");
    let size = ["--size", "128M", "--journal-size", "4M"];
    stetfs(&[&["mkfs", image.as_str()], &size[..]].concat()).ok();
    let mount = Mount::of(lab, image);
    mount.up(&[]);
    let dir = mount.file("dir");
    fs::create_dir(&dir).unwrap();
    // Each of these directories takes a block, and their inodes take some.
    let many = format!("cd {dir}; for i in $(seq 300); do mkdir $i; done");
    tool("sh", &["-ec", &many]).ok();
    let all = tree(Path::new(&dir));
    let each = "for i in *; do echo x >$i/x; done";
    let words = [
        "more than one transaction",
        "nothing was changed",
        "a larger journal",
    ];
    for layer in LAYERS {
        tx(&["--layer", layer], &dir, each).fails(125, &words);
        assert_eq!(tree(Path::new(&dir)), all, "{layer}");
    }
    mount.down();
}

#[test]
fn a_crash_leaves_all_or_nothing() {
    if !can_tx() {
        return;
    }
    const FILES: usize = 40;
    let schemes = ["scheme=jbd2,data=ordered", "scheme=stet"];
    for (options, layer) in schemes.into_iter().zip(LAYERS) {
        let ground = Ground::new("32M", options);
        let setup = format!("mkdir d; for i in $(seq {FILES}); do echo 0 >d/$i; done; echo 0 >n");
        tool("sh", &["-ec", &format!("cd {}; {setup}", ground.dir)]).ok();
        tool("sync", &[&ground.mount.dir]).ok();
        let stats = json(&stetfs(&["stats", "--json", &ground.dir]).ok());
        let pid = i32::try_from(stats["server"]["pid"].as_i64().unwrap()).unwrap();
        let server = Pid::from_raw(pid).unwrap();
        let dir = ground.dir.clone();
        let writer = std::thread::spawn(move || {
            for round in 1..=12 {
                // Half of the files are changed, half are new, and a tree replaces another.
                let script = format!(
                    "for i in $(seq {FILES}); do [ $((i % 2)) = 0 ] || rm d/$i; echo {round} >d/$i
                    done; rm -rf t; mkdir -p t/u; echo {round} >t/u/v; echo {round} >n"
                );
                tx(&["--layer", layer], &dir, &script).ok();
            }
        });
        let mut seen = std::collections::BTreeSet::new();
        let mut moment = 0;
        while !writer.is_finished() {
            // Moments in no order, the same in each run.
            moment = (moment * 7919 + 12_345) % 40_009;
            sleep(Duration::from_micros(moment));
            let copy = ground.mount.lab.str("copy.img");
            kill_process(server, Signal::STOP).unwrap();
            wait_until("the server is stopped", || {
                let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
                stat.rsplit_once(") ").unwrap().1.starts_with('T')
            });
            let copied = tool("cp", &["--sparse=always", &ground.mount.image, &copy]);
            kill_process(server, Signal::CONT).unwrap();
            copied.ok();
            stetfs(&["fsck", "-y", &copy]);
            let cat = |path: &str| stetfs(&["cat", &format!("{copy}:/dir/{path}")]);
            let round = cat("n").ok();
            seen.insert(round.clone());
            let mut paths: Vec<_> = (1..=FILES).map(|i| format!("{copy}:/dir/d/{i}")).collect();
            if round != "0\n" {
                paths.push(format!("{copy}:/dir/t/u/v"));
            }
            let expected = round.repeat(paths.len());
            let mut all = vec!["cat".to_owned()];
            all.extend(paths);
            assert_eq!(stetfs(&all).ok(), expected, "{options}");
            fs::remove_file(&copy).unwrap();
        }
        writer.join().unwrap();
        assert!(seen.len() > 2, "{options}: {seen:?}");
        ground.end();
    }
}
