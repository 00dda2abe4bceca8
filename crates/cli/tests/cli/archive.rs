//! `stetfs tar`, judged by GNU tar.

use std::fs::{self, File, FileTimes};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use crate::from::{assert_same, tree};
use crate::run::{Lab, STETFS, assert_clean, debugfs, has, stetfs, tool};

/// Returns what find(1) says of a tree, a line for each file, without its `lost+found`.
#[track_caller]
fn list(dir: &str) -> Vec<String> {
    // Sizes of directories are the file system's own.
    let script = "cd \"$1\" && find . -path ./lost+found -prune -o \\
        -type d -printf '%P d %m %U %G %T@\\n' -o -printf '%P %y %m %U %G %n %s %T@ %l\\n'";
    let found = tool("sh", &["-c", script, "sh", dir]).ok();
    let mut lines: Vec<String> = found.lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

#[track_caller]
fn unpack(archive: &str, dir: &str) {
    fs::create_dir_all(dir).unwrap();
    let how = ["--numeric-owner", "--xattrs", "--xattrs-include=*"];
    let args = ["-xpf", archive, "-C", dir];
    tool("tar", &[&args[..], &how].concat()).ok();
}

/// A program that packs or unpacks, with standard input and output.
fn piped(args: &[&str], stdin: Stdio, stdout: Stdio) -> Command {
    let mut command = Command::new(STETFS);
    command.args(args).stdin(stdin).stdout(stdout);
    command
}

#[test]
fn gnu_tar_unpacks_what_was_packed() {
    if !has("tar") {
        return;
    }
    let lab = Lab::new();
    let tree = tree(&lab);
    let top = Path::new(&tree);
    // What a header has no room for.
    let long = "n".repeat(120);
    fs::create_dir(top.join(&long)).unwrap();
    fs::write(top.join(&long).join("\n file"), "long").unwrap();
    fs::hard_link(top.join(&long).join("\n file"), top.join("hard")).unwrap();
    symlink(format!("../{long}"), top.join(&long).join("link")).unwrap();
    let old = SystemTime::UNIX_EPOCH - Duration::new(100, 250_000_000);
    let times = FileTimes::new().set_modified(old).set_accessed(old);
    File::open(top.join("hard"))
        .unwrap()
        .set_times(times)
        .unwrap();
    // A hole at the end, and nothing but one.
    File::create(top.join("hole"))
        .unwrap()
        .set_len(10 << 20)
        .unwrap();
    fs::write(top.join("ends"), vec![5; 8192]).unwrap();
    let ends = File::options().write(true).open(top.join("ends")).unwrap();
    ends.set_len(1 << 20).unwrap();
    let odd = [("user.a=b%", "x"), ("user.value", "a\n12 size=999\n")];
    let mut has_attributes = true;
    for (name, value) in odd {
        let flags = rustix::fs::XattrFlags::empty();
        let set = rustix::fs::setxattr(top.join("hard"), name, value.as_bytes(), flags);
        has_attributes &= set.is_ok();
    }
    if rustix::process::geteuid().is_root() {
        tool("mknod", &[&format!("{tree}/device"), "c", "5", "700"]).ok();
        tool("chown", &["4000000:3000000", &format!("{tree}/ends")]).ok();
    }

    let (image, archive) = (lab.str("disk.img"), lab.str("disk.tar"));
    stetfs(&["mkfs", &image, "--from", &tree]).ok();
    stetfs(&["tar", "-c", &image, "-f", &archive]).ok();
    let theirs = lab.str("theirs");
    unpack(&archive, &theirs);
    assert_eq!(list(&theirs), list(&tree));
    let same = [
        "-r",
        "--no-dereference",
        "--exclude=pipe",
        "--exclude=lost+found",
    ];
    let same = [&same[..], &["--exclude=device", &tree, &theirs]].concat();
    tool("diff", &same).ok();
    if has_attributes && has("getfattr") {
        let attributes = |dir: &str| {
            let file = format!("{dir}/hard");
            tool("getfattr", &["--absolute-names", "-d", &file])
                .ok()
                .replace(dir, "")
        };
        assert_eq!(attributes(&theirs), attributes(&tree));
    }
    // Holes take no room in the archive.
    assert!(fs::metadata(&archive).unwrap().len() < 8 << 20);

    // The same bytes again, through a pipe, of a copy of the volume; and from parts of it.
    let copy = lab.str("copy.img");
    stetfs(&["mkfs", &copy, "--from", &archive]).ok();
    let again = lab.str("again.tar");
    let out = File::create(&again).unwrap();
    let packed = piped(&["tar", "-c", &copy], Stdio::null(), out.into()).status();
    assert!(packed.unwrap().success());
    assert_same(&archive, &again);
    let some = [&format!("{image}:/deep"), &format!("{image}:/hard")];
    stetfs(&["tar", "-cf", &again, some[0], some[1]]).ok();
    let names = tool("tar", &["-tf", &again]).ok();
    assert!(
        names.starts_with("deep/\n") && names.ends_with("\nhard\n"),
        "{names}"
    );
    stetfs(&[
        "tar", "-c", "-C", "/deep", some[0], "-f", &again, "--chown", "7:8",
    ])
    .ok();
    let listed = tool("tar", &["--numeric-owner", "-tvf", &again]).ok();
    assert!(
        listed.lines().all(|line| line.contains(" 7/8 ")),
        "{listed}"
    );
    assert!(listed.contains(" ./sparse\n"), "{listed}");

    stetfs(&["tar", "-c", "-C", "/deep", some[1], "-f", &again]).fails(1, &["not below"]);
    stetfs(&["tar", "-c", &image, "-f", &image]).fails(2, &["is the image"]);
    stetfs(&["tar", "-c", &format!("{image}:/none"), "-f", &again]).fails(1, &["none"]);
    stetfs(&["tar", &image]).fails(2, &["--create"]);
    stetfs(&["tar", "-c", &image, "--tag", "x"]).fails(2, &["--tag"]);
    assert_clean(&image);
}

#[test]
fn acls_go_in_and_out_as_gnu_tar_has_them() {
    let lab = Lab::new();
    let tree = lab.path("tree");
    let three = lab.str("tree/dir/three");
    fs::create_dir_all(&three).unwrap();
    fs::write(tree.join("dir/f"), "").unwrap();
    let from = tree.to_str().unwrap();
    let set = |args: &[&str]| {
        let dir = format!("{from}/dir");
        tool("setfacl", &[&["-R"][..], args, &[&dir]].concat()).code == 0
    };
    let has_acls = ["tar", "setfacl", "getfacl"].into_iter().all(has)
        && set(&["-m", "u:4005:rw,g:4007:-"])
        && set(&["-d", "-m", "u:4008:r"]);
    if !has_acls {
        eprintln!("SKIPPED: {from} has no ACLs");
        return;
    }
    // No more than a mode, but one for new files.
    tool("setfacl", &["-k", &three]).ok();
    tool("setfacl", &["-dm", "u::rwx,g::r,o::-", &three]).ok();
    let acls = |dir: &str| tool("sh", &["-c", "cd \"$1\" && getfacl -nR .", "sh", dir]).ok();
    let (archive, image) = (lab.str("tree.tar"), lab.str("disk.img"));
    let how = ["--acls", "--numeric-owner"];
    tool(
        "tar",
        &[&how[..], &["-cf", &archive, "-C", from, "."]].concat(),
    )
    .ok();
    stetfs(&["mkfs", &image, "--from", &archive]).ok();
    let out = lab.str("out");
    stetfs(&[
        "cp",
        "-a",
        &format!("{image}:/dir"),
        &format!("{from}/../out"),
    ])
    .ok();
    assert_eq!(acls(&out), acls(&format!("{from}/dir")));

    stetfs(&["tar", "-cf", &archive, &format!("{image}:/dir")]).ok();
    let theirs = lab.str("theirs");
    fs::create_dir(&theirs).unwrap();
    tool(
        "tar",
        &[&how[..], &["-xpf", &archive, "-C", &theirs]].concat(),
    )
    .ok();
    assert_eq!(acls(&format!("{theirs}/dir")), acls(&format!("{from}/dir")));

    // Names are those of some machine.
    let lines = b"28 SCHILY.acl.access=u:me:r\n";
    let x = ("x", b'x', "");
    crate::from::archive_of(
        Path::new(&archive),
        &[(x, &lines[..]), (("f", b'0', ""), b"")],
    );
    let made = stetfs(&["mkfs", &image, "--force", "--from", &archive]);
    made.fails(0, &["ACLs are left out, of 1 of its files", "such as me"]);
}

/// What is there and what comes, of each kind over each.
#[test]
fn what_exists_is_replaced_as_by_gnu_tar() {
    if !has("tar") {
        return;
    }
    let lab = Lab::new();
    let (there, comes) = (lab.path("there"), lab.path("comes"));
    for dir in ["dir/kept", "usr/lib", "full/dir"] {
        fs::create_dir_all(there.join(dir)).unwrap();
    }
    for name in [
        "dir/kept/f",
        "dir/f",
        "file",
        "full/dir/f",
        "was",
        "elsewhere",
    ] {
        fs::write(there.join(name), format!("old {name}")).unwrap();
    }
    fs::hard_link(there.join("was"), there.join("other-name")).unwrap();
    symlink("usr/lib", there.join("lib")).unwrap();
    symlink("elsewhere", there.join("link")).unwrap();
    symlink("nowhere", there.join("dangling")).unwrap();

    for dir in ["dir/new", "lib", "file", "dangling"] {
        fs::create_dir_all(comes.join(dir)).unwrap();
    }
    for name in [
        "dir/new/f",
        "dir/f",
        "lib/so",
        "file/in",
        "full",
        "was",
        "link",
        "dangling/in",
    ] {
        fs::write(comes.join(name), format!("new {name}")).unwrap();
    }
    fs::hard_link(comes.join("was"), comes.join("again")).unwrap();

    let (image, archive) = (lab.str("disk.img"), lab.str("comes.tar.gz"));
    stetfs(&[
        "mkfs",
        &image,
        "--from",
        there.to_str().unwrap(),
        "--free",
        "2M",
    ])
    .ok();
    tool(
        "tar",
        &["-czf", &archive, "-C", comes.to_str().unwrap(), "."],
    )
    .ok();
    let args = [
        "--keep-directory-symlink",
        "--numeric-owner",
        "-xpf",
        &archive,
        "-C",
    ];
    let theirs = tool("tar", &[&args[..], &[there.to_str().unwrap()]].concat());
    assert!(
        theirs.code != 0 && theirs.err.contains("full"),
        "{theirs:?}"
    );

    let from = File::open(&archive).unwrap();
    let mut ours = piped(&["tar", "-x", &image], from.into(), Stdio::null());
    let ours = ours.stderr(Stdio::piped()).output().unwrap();
    let said = String::from_utf8(ours.stderr).unwrap();
    assert_eq!(ours.status.code(), Some(1), "{said}");
    assert!(said.contains("full exists and is a directory"), "{said}");
    assert!(said.contains("1 file was not copied"), "{said}");
    assert_clean(&image);
    let out = lab.str("out");
    stetfs(&["cp", "-a", &format!("{image}:/."), &out]).ok();
    let theirs = there.to_str().unwrap();
    let list = |dir: &str| {
        let mut list = list(dir);
        for line in &mut list {
            // It was changed at another time.
            if line.starts_with("usr/lib d") {
                line.truncate(line.rfind(' ').unwrap());
            }
        }
        list
    };
    assert_eq!(list(&out), list(theirs));
    tool(
        "diff",
        &[
            "-r",
            "--no-dereference",
            "--exclude=lost+found",
            theirs,
            &out,
        ],
    )
    .ok();

    // Into a directory, for somebody else.
    let into = format!("{image}:/dir/kept");
    stetfs(&["tar", "-xf", &archive, &into, "--chown", "5:6"]).ok();
    assert!(debugfs(&image, "stat /dir/kept/lib/so").contains("User:     5   Group:     6"));
    stetfs(&["tar", "-xf", &archive, &format!("{image}:/was")]).fails(1, &["is no directory"]);
    stetfs(&["tar", "-xf", &archive, &format!("{image}:/none")]).fails(1, &["no such file"]);
    stetfs(&["tar", "-xf", &archive, &image, &image]).fails(2, &["one directory"]);
    assert_clean(&image);
}

#[test]
fn what_cannot_be_read_is_told_and_the_rest_is_packed() {
    let lab = Lab::new();
    let tree = lab.path("tree");
    fs::create_dir(&tree).unwrap();
    for name in ["a", "b", "c"] {
        fs::write(tree.join(name), vec![b'x'; 100_000]).unwrap();
    }
    let (image, archive) = (lab.str("disk.img"), lab.str("disk.tar"));
    let from = tree.to_str().unwrap();
    stetfs(&["mkfs", &image, "--from", from, "--type", "ext3"]).ok();
    tool("debugfs", &["-w", "-R", "sif /b block[3] 4000000", &image]).ok();
    let packed = stetfs(&["tar", "-c", &image, "-f", &archive]);
    packed.fails(
        1,
        &["disk.img:/b: ", "1 file is not in the archive as it is"],
    );
    if has("tar") {
        let names = tool("tar", &["-tf", &archive]).ok();
        assert_eq!(names, "./\n./a\n./c\n./lost+found/\n");
    }
}
