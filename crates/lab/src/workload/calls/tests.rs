//! Lists and traces become the calls that they describe, and a replayed trace leaves what the
//! program left.

use std::time::Duration;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use stetfs_powercut::tree::{Body, Tree};
use stetfs_testkit::host::needs;
use stetfs_testkit::image::EXT4_4K;
use stetfs_testkit::skip_unless;

use super::*;
use crate::system::{ADP_S, Bed, PCM, Volume};
use crate::workload::session::Durable;

fn whats(calls: &[Call]) -> Vec<What> {
    calls.iter().map(|call| call.what.clone()).collect()
}

fn write(path: &str, at: u64, len: u64) -> What {
    What::Write(path.into(), Place::At(at), Bytes::Random(len))
}

#[test]
fn a_list_is_what_it_says() {
    let list = "mkdir m\ncreate f # a comment\nrun\n\nrepeat 2\n repeat 2 j\n  create m/$i-$j\n \
        end\nend\nrepeat 0\n sync\nend\nwrite f 4K 1.5K\nappend f 10\n\
        read f random 512\nwait 5ms\nsync\n";
    let calls = text::parse(list, "list", 1).expect("a list");
    let create = |name: &str| What::Create(name.into());
    assert_eq!(whats(&calls.before), [What::Mkdir("m".into()), create("f")]);
    let mut expected = ["m/0-0", "m/0-1", "m/1-0", "m/1-1"].map(create).to_vec();
    expected.extend([
        write("f", 4096, 1536),
        What::Write("f".into(), Place::End, Bytes::Random(10)),
        What::Read("f".into(), Place::Random, 512),
        What::Wait(Duration::from_millis(5)),
        What::Sync,
    ]);
    assert_eq!(whats(&calls.calls), expected);
    let drawn =
        |seed| text::parse("repeat 50\n unlink f$(3..5)\nend", "list", seed).expect("a list");
    let names = |calls: Calls| whats(&calls.calls);
    assert_eq!(names(drawn(1)), names(drawn(1)));
    assert_ne!(names(drawn(1)), names(drawn(2)));
    for what in names(drawn(1)) {
        assert!(matches!(&what, What::Unlink(name) if ["f3", "f4", "f5"].contains(&name.as_str())));
    }
    for (list, why) in [
        ("sync\nwrite f 0", "list, line 2: \"write f 0\" is none of"),
        ("repeat 2\nsync", "without an end"),
        ("sync\nend", "line 2: no repetition"),
        ("repeat 2\nrun\nend", "line 2: run is said once"),
        ("unlink $k", "$k: there is no repetition"),
        ("unlink $(9..3)", "FIRST..LAST"),
        ("write f 1X 1", "bytes are a number"),
        ("sync\nrun", "no calls to be measured"),
        ("repeat 99999999999\nsync\nend", "more than 10000000 calls"),
    ] {
        let error = text::parse(list, "list", 1).map(drop).expect_err(list);
        assert!(format!("{error:#}").contains(why), "{list}: {error:#}");
    }
}

/// Below a directory that was renamed twice, names are those of before. What the trace made is not
/// there before.
#[test]
fn directories_are_renamed_with_what_is_in_them() {
    let trace = "10 0.9 unlink(\"/d/a/gone\") = 0\n\
         10 1.0 rename(\"/d/a\", \"/d/b\") = 0\n\
         10 1.1 rename(\"/d/b\", \"/d/c\") = 0\n\
         10 1.2 mkdir(\"/d/new\", 0755) = 0\n\
         10 1.3 rename(\"/d/new\", \"/d/newer\") = 0\n\
         10 1.4 openat(AT_FDCWD</>, \"/d/newer/f\", O_WRONLY|O_CREAT, 0644) = 3</d/newer/f>\n\
         10 1.5 unlink(\"/d/c/old\") = 0\n";
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("trace");
    std::fs::write(&path, trace).expect("the trace");
    let calls = strace::read(&path, "/d/", Pace::Full, 1).expect("a trace");
    let before = whats(&calls.before);
    let expected = [
        What::Mkdir("a".into()),
        What::Create("a/gone".into()),
        What::Create("a/old".into()),
    ];
    assert_eq!(before, expected);
}

/// A name first seen in a rename was once always prepared as an empty file: nothing could be made
/// below it, and what was read of it was not there. A name that was given away belongs to something
/// else.
#[test]
fn what_is_first_seen_when_it_is_renamed_is_what_it_turns_out_to_be() {
    let trace = "10 1.0 rename(\"/d/made-below\", \"/d/a\") = 0\n\
         10 1.1 openat(AT_FDCWD</>, \"/d/a/f\", O_WRONLY|O_CREAT, 0644) = 3</d/a/f>\n\
         10 1.2 rename(\"/d/listed\", \"/d/b\") = 0\n\
         10 1.3 rename(\"/d/b\", \"/d/c\") = 0\n\
         10 1.4 openat(AT_FDCWD</>, \"/d/c\", O_RDONLY|O_DIRECTORY) = 4</d/c>\n\
         10 1.5 rename(\"/d/read\", \"/d/e\") = 0\n\
         10 1.6 pread64(5</d/e>, \"\"..., 8, 4000) = 8\n\
         10 1.7 pwrite64(5</d/e>, \"\"..., 8, 9000) = 8\n\
         10 1.8 pread64(5</d/e>, \"\"..., 8, 9000) = 8\n\
         10 1.9 rename(\"/d/next\", \"/d/made-below\") = 0\n\
         10 2.0 unlink(\"/d/made-below/g\") = 0\n\
         10 2.1 rename(\"/d/replaced\", \"/d/h\") = 0\n\
         10 2.2 creat(\"/d/new\", 0644) = 6</d/new>\n\
         10 2.3 write(6</d/new>, \"x\", 1) = 1\n\
         10 2.4 rename(\"/d/new\", \"/d/h\") = 0\n\
         10 2.5 stat(\"/d/h\", {st_mode=S_IFREG|0644, st_size=1, ...}) = 0\n\
         10 2.6 unlink(\"/d/a/below/deep\") = 0\n";
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("trace");
    std::fs::write(&path, trace).expect("the trace");
    let calls = strace::read(&path, "/d/", Pace::Full, 1).expect("a trace");
    let expected = [
        What::Mkdir("listed".into()),
        What::Mkdir("made-below".into()),
        What::Mkdir("made-below/below".into()),
        What::Mkdir("next".into()),
        What::Create("made-below/below/deep".into()),
        What::Create("next/g".into()),
        What::Create("read".into()),
        write("read", 0, 4008),
        What::Create("replaced".into()),
    ];
    assert_eq!(whats(&calls.before), expected);
}

/// Calls in two parts, strings of any bytes, copied descriptors, paths from a directory, and files
/// that were there before, with their sizes.
#[test]
fn a_trace_becomes_calls() {
    let trace = r#"10 1.5 openat(AT_FDCWD</d>, "m/f", O_WRONLY|O_CREAT|O_APPEND, 0644) = 3</d/m/f>
10 1.6 write(3</d/m/f>, "a\n\"\0\101\x7f", 6) = 6
10 1.7 write(3</d/m/f>, "abc"..., 100 <unfinished ...>
11 1.8 fsync(9</elsewhere>) = 0
10 1.9 <... write resumed>) = 100
10 2.0 openat(AT_FDCWD</d>, "old, (really) <old>", O_RDWR) = 4</d/old, (really) <old>>
10 2.0 fstat(4</d/o>, {st_mode=S_IFREG|0644, st_size=700, ...}) = 0
10 2.1 pread64(5</d/o>, "", 8, 4000) = 8
10 2.1 lseek(5</d/o>, 10, SEEK_SET) = 10
10 2.2 dup2(5</d/o>, 1</dev/null>) = 1</d/o>
10 2.3 write(1</d/o>, "xy", 2) = 2
10 2.4 renameat2(AT_FDCWD</d>, "o", 7</d/m>, "p", 0) = 0
10 2.4 write(1</d/m/p>, "z", 1) = 1
10 2.5 unlink("missing") = -1 ENOENT (No such file or directory)
10 2.6 unlink("m/f") = 0
10 2.7 --- SIGCHLD {si_signo=SIGCHLD} ---
10 2.8 +++ exited with 0 +++
"#;
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("trace");
    std::fs::write(&path, trace).expect("the trace");
    let calls = strace::read(&path, "/d/", Pace::Full, 1).expect("a trace");
    let given = |path: &str, place, bytes: &[u8]| {
        What::Write(path.into(), place, Bytes::Given(bytes.to_vec()))
    };
    let before = [
        What::Mkdir("m".into()),
        What::Create("o".into()),
        write("o", 0, 4008),
    ];
    assert_eq!(whats(&calls.before), before);
    let expected = [
        What::Create("m/f".into()),
        given("m/f", Place::End, b"a\n\"\0A\x7f"),
        What::Write("m/f".into(), Place::End, Bytes::Random(100)),
        What::Stat("o".into()),
        What::Read("o".into(), Place::At(4000), 8),
        given("o", Place::At(10), b"xy"),
        What::Rename("o".into(), "m/p".into()),
        given("m/p", Place::At(12), b"z"),
        What::Unlink("m/f".into()),
    ];
    assert_eq!(whats(&calls.calls), expected);
    assert_eq!(calls.calls[1].at, Some(Duration::from_secs_f64(1.6)));
    let none = strace::read(&path, "/nowhere", Pace::Full, 1).map(drop);
    assert!(format!("{:#}", none.expect_err("no call")).contains("no call below /nowhere"));
}

#[test]
fn requests_of_a_disk_become_calls_on_an_image() {
    let trace = "  8,0  1  1  0.000000000  99  Q  FWFS 4096 + 8 [db]\n\
          8,0  1  2  0.000001000  99  D  WS 4096 + 8 [db]\n\
          8,0  1  3  0.500000000  99  Q  R 1000000 + 16 [db]\n\
          8,0  1  4  0.600000000  99  Q  D 4088 + 16 [db]\n\
          8,0  1  5  0.700000000  99  Q  FN [db]\n\
        CPU1 (8,0):\n Reads Queued: 1\n";
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("trace");
    std::fs::write(&path, trace).expect("the trace");
    let calls = blkparse::read(&path, Pace::Recorded, 1).expect("a trace");
    let image = "disk.img";
    let flush = What::Fdatasync(image.into());
    // Sectors 4088 to 4104 are at the end of the disk's second MiB and the beginning of its third,
    // 1,000,000 in its 489th.
    let (mib, at) = (1 << 20, 1_000_000 * 512 % (1 << 20));
    let expected = [
        flush.clone(),
        write(image, mib, 4096),
        flush.clone(),
        What::Read(image.into(), Place::At(2 * mib + at), 8192),
        What::Punch(image.into(), mib - 4096..mib),
        What::Punch(image.into(), mib..mib + 4096),
        flush,
    ];
    assert_eq!(whats(&calls.calls), expected);
    assert_eq!(calls.before[1].what, write(image, 0, 3 * mib));
}

/// Names with their content: bytes of a file, target of a link.
type Left = BTreeMap<String, Option<Vec<u8>>>;

fn left_on_the_host(dir: &Path) -> Left {
    let mut left = Left::new();
    let mut dirs: Vec<PathBuf> = vec![dir.to_owned()];
    while let Some(at) = dirs.pop() {
        for entry in std::fs::read_dir(&at).expect("a directory") {
            let path = entry.expect("an entry").path();
            let name = path.strip_prefix(dir).expect("below it");
            let name = name.to_str().expect("UTF-8").to_owned();
            let kind = path.symlink_metadata().expect("its kind").file_type();
            let has = if kind.is_dir() {
                dirs.push(path);
                None
            } else if kind.is_symlink() {
                let link = std::fs::read_link(path).expect("a link");
                Some(link.to_str().expect("UTF-8").as_bytes().to_vec())
            } else {
                Some(std::fs::read(path).expect("a file"))
            };
            left.insert(name, has);
        }
    }
    left
}

fn left_on(bed: &Bed) -> Left {
    let (tree, _) = Tree::read(bed.fs()).expect("the volume");
    let has = |body: &Body| match body {
        Body::File(content) => {
            let mut bytes = vec![0; content.size() as usize];
            content.read(0, &mut bytes);
            Some(bytes)
        }
        Body::Link(link) => Some(link.clone()),
        Body::Dir(_) | Body::Special => None,
    };
    let paths = tree
        .paths()
        .into_iter()
        .filter(|(path, _)| !path.is_empty());
    let node = |object| &tree.get(object).expect("its node").body;
    paths
        .map(|(path, object)| (path, has(node(object))))
        .collect()
}

/// Neither the program nor the tracer is ours: the volume must end up with what the kernel's file
/// system has.
#[test]
fn a_traced_program_leaves_the_same_tree() {
    skip_unless!(needs(false, false, &["mke2fs", "strace", "python3"]));
    const PROGRAM: &str = r"
import os, sqlite3
c = sqlite3.connect('a.db')
c.execute('create table t(x)')
for i in range(20):
    c.execute('insert into t values(?)', (str(i) * 300,))
    c.commit()
c.close()
os.mkdir('m')
with open('m/f', 'wb') as f:
    f.write(bytes(range(256)) * 40)
    f.flush()
    os.fsync(f.fileno())
os.rename('m/f', 'm/g')
fd = os.open('m/g', os.O_RDWR | os.O_APPEND)
os.write(fd, b'more')
os.writev(fd, [b'', b''])
os.pwrite(fd, b'', 5)
os.close(fd)
fd = os.open('m/g', os.O_RDWR)
os.lseek(fd, 77, os.SEEK_SET)
os.write(fd, b'seven')
os.rename('m', 'n')
os.write(fd, b'renamed')
os.ftruncate(fd, 5000)
os.close(fd)
h = os.open('h', os.O_CREAT | os.O_RDWR)
os.posix_fallocate(h, 0, 5000)
os.symlink('n/g', 's')
os.link('n/g', 'l')
os.unlink('n/g')
os.listdir('n')
os.system('echo one >>log; echo two >>log; mkdir o; mv log o/log; rmdir n')
u = os.open('u', os.O_CREAT | os.O_RDWR)
os.unlink('u')
os.write(u, b'nobody sees it')
";
    let dir = tempfile::tempdir().expect("a directory");
    let (there, trace) = (dir.path().join("d"), dir.path().join("trace"));
    std::fs::create_dir(&there).expect("a directory");
    let program = Command::new("strace")
        .args(["-f", "-y", "-ttt", "-s", "1000000", "-o"])
        .arg(&trace)
        .args(["python3", "-c", PROGRAM])
        .current_dir(&there)
        .status();
    assert!(program.expect("strace").success());
    let under = there.to_str().expect("UTF-8");
    let calls = strace::read(&trace, under, Pace::Recorded, 1).expect("a trace");
    assert!(whats(&calls.calls).contains(&What::Fdatasync("a.db".into())));
    let volume = Volume::make(EXT4_4K, 32, 4).expect("a volume");
    let bed = Bed::new(ADP_S, PCM, &volume, 64).expect("a bed");
    let mut session = Session::new(bed.fs(), bed.time(), Durable::EXT3, &|_, _| {});
    calls.prepare(&mut session).expect("preparing");
    let began = session.now_ns();
    calls.run(&mut session).expect("the trace");
    let first = calls.calls[0].at.expect("a time");
    let last = calls.calls.last().and_then(|call| call.at).expect("a time");
    let took = Duration::from_nanos(session.now_ns() - began);
    assert!(took >= last - first, "{took:?}");
    let (expected, left) = (left_on_the_host(&there), left_on(&bed));
    let names = |left: &Left| left.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&left), names(&expected));
    for (name, has) in &expected {
        assert!(left[name] == *has, "{name} differs");
    }
}

/// recorded.json is of `stetfs crash --keep FILE -- sh -c PROGRAM`; it has the program's text.
#[test]
fn a_recorded_program_leaves_the_same_tree() {
    skip_unless!(needs(false, false, &["mke2fs"]));
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/workload/calls/recorded.json");
    let recorded = Recorded::read(&path, Pace::Recorded).expect("a recording");
    let volume = Volume::make(EXT4_4K, 32, 4).expect("a volume");
    let bed = Bed::new(ADP_S, PCM, &volume, 64).expect("a bed");
    let mut session = Session::new(bed.fs(), bed.time(), Durable::EachWrite, &|_, _| {});
    recorded.prepare(&mut session).expect("preparing");
    recorded.run(&mut session).expect("the recording");
    assert_eq!(session.counts().written_bytes, 8);
    let bytes = |text: &str| Some(text.as_bytes().to_vec());
    let expected = [("m", None), ("m/g", bytes("one")), ("s", bytes("m/g"))];
    let expected = expected.map(|(name, has)| (name.to_owned(), has));
    assert_eq!(left_on(&bed), Left::from(expected));
    recorded.judge(&mut session).expect("what the program left");
    session.remove(session.root(), "s").expect("a name");
    recorded.judge(&mut session).expect_err("a name is missing");
}
