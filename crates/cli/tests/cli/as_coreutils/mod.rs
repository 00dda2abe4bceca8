//! cp, mv, ln, rm, mkdir, ls and cat beside those of coreutils. Each row runs our command on an
//! image, and the real program on a kernel mount of a copy of that image. Then both volumes, both
//! trees on this machine, the output, and success or failure must be the same.
//!
//! All rows share a volume, each with its own directory, so that a few mounts suffice. The trees on
//! this machine are on an ext4 volume too, so that the machine's own file system does not matter.
//!
//! The table in docs/COMMANDS.md is made from the rows: `STETFS_LAB_WRITE=1 cargo test -p
//! stetfs-cli --test cli as_coreutils`.

mod rows;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::fs::XattrFlags;

use crate::run::{Lab, Ran, STETFS, assert_clean, has, tool};
use rows::{ALL, Row};

/// The content of each row's directory in the volume.
const VOLUME: &str = r#"
printf 'old content, which is longer\n' > f; chown 1000:1001 f; chmod 640 f
printf 'g\n' > g
printf 'suid\n' > suid; chmod 4755 suid
printf 'hard\n' > hard; ln hard hard2
printf 'acl\n' > facl; printf 'attributes\n' > fx; printf 'capable\n' > cap
ln -s f lf; ln -s d ld; ln -s nowhere dangling
mkfifo fifo; mknod null c 1 3
truncate -s 1M sparse; printf end >> sparse
mkdir -p d/sub dst/f dst/d/a dg dacl di
printf a > d/a; printf 'the f of d\n' > d/f; printf x > d/sub/x; printf dot > d/.dot
chown 1000:1001 d; chmod 750 d; chmod 1777 d/sub
printf 'in the way\n' > dst/d/sub; ln -s ../g dst/lk; printf 1 > dst/hl1; printf 2 > dst/hl2
ln dst/hl2 dst/hl3
chgrp 77 dg; chmod 2775 dg
printf imm > di/imm; printf other > di/other; mkdir di/below; printf x > di/below/x
"#;

/// The content of each row's directory on this machine, `h`.
const HOST: &str = r#"
printf 'one\n' > one; printf 'two\n' > two; : > empty; printf 'the f of h\n' > f; chmod 664 two
printf 'suid\n' > suid; chown 1000:1001 suid; chmod 6751 suid
printf 'acl\n' > facl; printf 'attributes\n' > fx; printf 'capable\n' > cap
printf 'links\n' > hl1; ln hl1 hl2
ln -s one lk; ln -s d lkd; ln -s nowhere dangling
mkfifo fifo; chmod 622 fifo
truncate -s 1M sparse; printf end >> sparse; truncate -s 2M sparse
mkdir -p d/sub d/empty rod dacl links/d
printf 'new a\n' > d/a; printf 'new f\n' > d/f; printf b > d/b; printf x > d/sub/x
printf dot > d/.dot; ln -s a d/lk; mkfifo d/pipe; ln d/b d/sub/b; chmod 775 d/sub
chown 2000:2001 d/a; chmod 1755 d/empty
printf x > rod/x; chmod 555 rod
printf x > dacl/x
ln -s ../../two links/d/f
"#;

/// Sets every time, before the rows run.
const OLD: &str = "find . -exec touch -h -d '2001-02-03 04:05:06.789' {} +";

const NOBODY: &str = "--reuid=65534 --regid=65534 --clear-groups";

/// An ACL with a named user: version 2, then tag, permissions and ID of each entry.
fn acl(user: u16) -> Vec<u8> {
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    let none = u32::MAX;
    for (tag, permissions, id) in [
        (0x01, 7_u16, none),
        (0x02, user, 1234),
        (0x04, 5, none),
        (0x10, 7, none),
        (0x20, 4, none),
    ] {
        bytes.extend(u16::to_le_bytes(tag));
        bytes.extend(permissions.to_le_bytes());
        bytes.extend(u32::to_le_bytes(id));
    }
    bytes
}

/// Sets attributes in the tree that one of the scripts made.
fn set_attributes(dir: &Path) {
    // struct vfs_cap_data, revision 2: CAP_NET_RAW, permitted and effective.
    let capability = [[1, 0, 0, 2], [0, 0x20, 0, 0], [0; 4], [0; 4], [0; 4]].concat();
    for (name, attribute, value) in [
        ("facl", "system.posix_acl_access", acl(6)),
        ("dacl", "system.posix_acl_access", acl(7)),
        ("dacl", "system.posix_acl_default", acl(3)),
        ("fx", "user.colour", b"blue".to_vec()),
        ("fx", "user.large", vec![7; 600]),
        ("fx", "trusted.word", b"x".to_vec()),
        ("cap", "security.capability", capability),
    ] {
        let path = dir.join(name);
        rustix::fs::setxattr(&path, attribute, &value, XattrFlags::empty())
            .unwrap_or_else(|e| panic!("{attribute} of {}: {e}", path.display()));
    }
}

/// A volume on a loop device; dropping it unmounts.
struct Mounted(PathBuf);

impl Mounted {
    fn new(image: &str, dir: PathBuf) -> Self {
        fs::create_dir_all(&dir).unwrap();
        let path = dir.to_str().unwrap();
        tool("mount", &["-o", "loop,noatime", image, path]).ok();
        Self(dir)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        tool("umount", &[&self.0]);
    }
}

fn shell(dir: &Path, script: &str) {
    let script = format!("set -e; umask 022; cd '{}'; {script}", dir.display());
    tool("bash", &["-c", &script]).ok();
}

fn make_image(path: &str) {
    let args = [
        "-q", "-F", "-t", "ext4", "-b", "1024", "-I", "256", "-N", "40000", path, "160M",
    ];
    tool("mke2fs", &args).ok();
}

/// Makes a directory for each row, in a volume.
fn make_volume(image: &str, dir: PathBuf, rows: usize) {
    make_image(image);
    let mounted = Mounted::new(image, dir);
    let first = mounted.0.join("r0");
    fs::create_dir(&first).unwrap();
    shell(&first, VOLUME);
    set_attributes(&first);
    shell(&first, OLD);
    let copies = format!("for n in $(seq 1 {}); do cp -a r0 r$n; done", rows - 1);
    shell(&mounted.0, &copies);
    shell(&mounted.0, "chattr +i r*/di/imm");
}

/// Makes the same on this machine, for both.
fn make_host(dir: &Path, rows: usize) {
    let first = dir.join("ours/r0/h");
    fs::create_dir_all(&first).unwrap();
    shell(&first, HOST);
    set_attributes(&first);
    shell(&first, OLD);
    let copies = format!(
        "for n in $(seq 1 {}); do cp -a ours/r0 ours/r$n; done; cp -a ours theirs",
        rows - 1
    );
    shell(dir, &copies);
}

/// Describes one file in words; of its times, those that the row did not make.
fn described(path: &Path, start: i64, first: &str) -> String {
    let meta = path.symlink_metadata().unwrap();
    let kind = meta.file_type();
    let (letter, content) = if kind.is_dir() {
        ('d', String::new())
    } else if kind.is_symlink() {
        ('l', fs::read_link(path).unwrap().display().to_string())
    } else if kind.is_file() {
        let bytes = fs::read(path).unwrap();
        let sum: u64 = bytes.iter().zip(1..).map(|(b, n)| u64::from(*b) * n).sum();
        let head = String::from_utf8_lossy(&bytes[..bytes.len().min(32)]).into_owned();
        // Compare holes as far as they matter: one of these volumes may have another block of a
        // map.
        let is_sparse = meta.blocks() * 512 < meta.size() / 2;
        let sparse = if is_sparse { " sparse" } else { "" };
        (
            '-',
            format!("{} bytes, sum {sum}, {head:?}{sparse}", meta.size()),
        )
    } else if kind.is_fifo() {
        ('p', String::new())
    } else {
        ('c', format!("{:x}", meta.rdev()))
    };
    let time = |sec, nsec| {
        if sec >= start {
            "now".to_owned()
        } else {
            format!("{sec}.{nsec:09}")
        }
    };
    let mut text = format!(
        "{letter}{:04o} {}:{} links {} mtime {} atime {} {content}{first}",
        meta.permissions().mode() & 0o7777,
        meta.uid(),
        meta.gid(),
        meta.nlink(),
        time(meta.mtime(), meta.mtime_nsec()),
        time(meta.atime(), meta.atime_nsec()),
    );
    let mut names = vec![0; 4096];
    let n = rustix::fs::llistxattr(path, &mut names[..]).unwrap();
    let mut names: Vec<&[u8]> = names[..n]
        .split(|b| *b == 0)
        .filter(|n| !n.is_empty())
        .collect();
    names.sort();
    for name in names {
        let mut value = vec![0; 4096];
        let n = rustix::fs::lgetxattr(path, name, &mut value[..]).unwrap();
        write!(
            text,
            " {}={}",
            name.escape_ascii(),
            value[..n].escape_ascii()
        )
        .unwrap();
    }
    text
}

/// Describes a tree in words.
fn tree(root: &Path, start: i64) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    let mut todo = vec![root.to_owned()];
    let mut paths = Vec::new();
    while let Some(path) = todo.pop() {
        if path.symlink_metadata().unwrap().is_dir() {
            todo.extend(
                fs::read_dir(&path)
                    .unwrap()
                    .map(|entry| entry.unwrap().path()),
            );
        }
        paths.push(path);
    }
    paths.sort();
    let mut firsts: BTreeMap<u64, String> = BTreeMap::new();
    for path in paths {
        let name = path.strip_prefix(root).unwrap().display().to_string();
        let meta = path.symlink_metadata().unwrap();
        let mut first = String::new();
        if !meta.is_dir() && meta.nlink() > 1 {
            let known = firsts.entry(meta.ino()).or_insert_with(|| name.clone());
            first = format!(" is {known}");
        }
        all.insert(format!("{name}/"), described(&path, start, &first));
    }
    all
}

/// Describes how two trees differ.
fn difference(ours: &BTreeMap<String, String>, theirs: &BTreeMap<String, String>) -> String {
    let mut text = String::new();
    let names: std::collections::BTreeSet<_> = ours.keys().chain(theirs.keys()).collect();
    for name in names {
        let (a, b) = (ours.get(name), theirs.get(name));
        if a != b {
            let none = "(none)".to_owned();
            let (a, b) = (a.unwrap_or(&none), b.unwrap_or(&none));
            writeln!(text, "    {name}\n      ours:   {a}\n      theirs: {b}").unwrap();
        }
    }
    text
}

/// Runs a row's line, in which `V/` is this place.
fn run(dir: &Path, functions: &str, line: &str, volume: &str) -> Ran {
    let line = line.replace("V/", &format!("{volume}/"));
    let script = format!("{functions}\numask 022; cd '{}'; {line}", dir.display());
    let mut ran = tool("timeout", &["30", "bash", "-c", &script]);
    ran.out = ran.out.replace(volume, "V");
    ran
}

#[test]
fn each_command_does_what_that_of_coreutils_does() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root can mount the volumes to compare with");
        return;
    }
    if !["losetup", "setpriv", "timeout", "bash"]
        .into_iter()
        .all(has)
    {
        return;
    }
    let rows: Vec<&Row> = ALL.iter().flat_map(|(_, rows)| *rows).collect();
    let lab = Lab::in_memory();
    fs::set_permissions(lab.path(""), fs::Permissions::from_mode(0o755)).unwrap();
    let command = lab.str("stetfs");
    fs::copy(STETFS, &command).unwrap();
    let (ours, theirs, host) = (
        lab.str("ours.img"),
        lab.str("theirs.img"),
        lab.str("host.img"),
    );
    make_volume(&ours, lab.path("v"), rows.len());
    fs::copy(&ours, &theirs).unwrap();
    fs::set_permissions(&ours, fs::Permissions::from_mode(0o666)).unwrap();
    make_image(&host);
    let host = Mounted::new(&host, lab.path("host"));
    make_host(&host.0, rows.len());

    let real = "as_user() { \"$@\"; }";
    let mut own = format!("as_user() {{ setpriv {NOBODY} '{command}' \"$@\"; }}\n");
    for verb in ["cp", "mv", "ln", "rm", "mkdir", "ls", "cat"] {
        writeln!(own, "{verb}() {{ '{command}' {verb} \"$@\"; }}").unwrap();
    }
    let start = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap();
    let start = start.as_secs() as i64;
    let mut ran = Vec::new();
    let volume = Mounted::new(&theirs, lab.path("v"));
    for (n, row) in rows.iter().enumerate() {
        let dir = |side: &str| host.0.join(format!("{side}/r{n}"));
        let line = if row.theirs.is_empty() {
            row.line
        } else {
            row.theirs
        };
        let mounted = volume.0.join(format!("r{n}"));
        let theirs = run(&dir("theirs"), real, line, mounted.to_str().unwrap());
        let ours = run(&dir("ours"), &own, row.line, &format!("{ours}:/r{n}"));
        ran.push((ours, theirs));
    }
    assert_clean(&ours);
    let own_volume = Mounted::new(&ours, lab.path("own"));
    let mut wrong = String::new();
    for (n, (row, (ours, theirs))) in rows.iter().zip(ran).enumerate() {
        let mut text = String::new();
        if (ours.code == 0) != (theirs.code == 0) || ours.code > 125 || ours.err.contains("panic") {
            writeln!(
                text,
                "    exit codes: ours {}, theirs {}",
                ours.code, theirs.code
            )
            .unwrap();
        }
        if ours.out != theirs.out {
            writeln!(
                text,
                "    ours prints {:?}, theirs {:?}",
                ours.out, theirs.out
            )
            .unwrap();
        }
        let trees = [
            (&own_volume.0, &volume.0, format!("r{n}"), format!("r{n}")),
            (
                &host.0,
                &host.0,
                format!("ours/r{n}"),
                format!("theirs/r{n}"),
            ),
        ];
        for (our_root, their_root, our_dir, their_dir) in trees {
            let ours = tree(&our_root.join(our_dir), start);
            text += &difference(&ours, &tree(&their_root.join(their_dir), start));
        }
        if !text.is_empty() {
            writeln!(
                wrong,
                "{}\n{text}    ours says:   {}\n    theirs says: {}",
                row.line,
                ours.err.trim_end(),
                theirs.err.trim_end()
            )
            .unwrap();
        }
    }
    drop((own_volume, volume));
    assert!(wrong.is_empty(), "\n{wrong}");
}

/// The table in the documents is made of the rows above.
#[test]
fn the_table_in_the_documents_is_that_of_the_rows() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/COMMANDS.md");
    let text = fs::read_to_string(&path).unwrap();
    let (before, rest) = text
        .split_once("<!-- rows -->\n")
        .expect("where they begin");
    let (_, after) = rest
        .split_once("<!-- end of rows -->")
        .expect("where they end");
    let mut table = String::new();
    for (title, rows) in ALL {
        writeln!(
            table,
            "\n## {title}\n\n| command line | what it does | as coreutils |"
        )
        .unwrap();
        writeln!(table, "|---|---|---|").unwrap();
        for row in *rows {
            let like = match row.why {
                "" => "yes".to_owned(),
                why => format!("no: {why}"),
            };
            let line = row.line.replace('|', "\\|");
            writeln!(table, "| `{line}` | {} | {like} |", row.does).unwrap();
        }
    }
    let right = format!("{before}<!-- rows -->\n{table}\n<!-- end of rows -->{after}");
    if std::env::var_os("STETFS_LAB_WRITE").is_some() {
        fs::write(&path, right).unwrap();
    } else {
        assert!(
            text == right,
            "docs/COMMANDS.md has other rows: STETFS_LAB_WRITE=1 writes them"
        );
    }
}
