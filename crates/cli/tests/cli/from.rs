//! mkfs --from: a volume with the content of a tree, judged by e2fsck, debugfs, tar and the kernel.

use std::fs::{self, File, FileTimes};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::time::{Duration, SystemTime};

use rustix::fs::XattrFlags;

use crate::run::{Lab, Ran, STETFS, assert_clean, debugfs, dumpe2fs, has, stetfs, tool};

const EPOCH: &str = "1600000000";

/// Runs `stetfs ARGS` at the time of `SOURCE_DATE_EPOCH`.
pub(crate) fn stetfs_then(args: &[&str]) -> Ran {
    let variable = format!("SOURCE_DATE_EPOCH={EPOCH}");
    let mut all = vec![&*variable, STETFS];
    all.extend(args);
    tool("env", &all)
}

/// Makes a tree with files of each kind. Its times lie before and after the epoch.
pub(crate) fn tree(lab: &Lab) -> String {
    let dir = lab.path("tree");
    fs::create_dir_all(dir.join("many/empty")).unwrap();
    fs::create_dir(dir.join("deep")).unwrap();
    for i in 0..300 {
        let name = format!("many/a file with a rather long name, number {i}");
        fs::write(dir.join(name), vec![b'x'; i * 37]).unwrap();
    }
    fs::write(dir.join("deep/large"), vec![7; 3 << 20]).unwrap();
    let sparse = File::create(dir.join("deep/sparse")).unwrap();
    // More pieces than the header of an archive has places for, and than the next block has.
    for i in 1..=40 {
        sparse.write_all_at(b"behind a hole", i << 20).unwrap();
    }
    fs::hard_link(dir.join("deep/large"), dir.join("linked")).unwrap();
    symlink("deep/large", dir.join("short")).unwrap();
    symlink("l".repeat(200), dir.join("long")).unwrap();
    let special = dir.join("deep/set-id");
    fs::write(&special, "program").unwrap();
    fs::set_permissions(&special, fs::Permissions::from_mode(0o4755)).unwrap();
    tool("mkfifo", &[dir.join("pipe").to_str().unwrap()]).ok();
    let old = SystemTime::UNIX_EPOCH + Duration::new(1_234_567_890, 123_456_789);
    let times = FileTimes::new().set_modified(old).set_accessed(old);
    File::open(&special).unwrap().set_times(times).unwrap();
    dir.to_str().unwrap().to_owned()
}

/// Asserts that two files have the same bytes.
#[track_caller]
pub(crate) fn assert_same(a: &str, b: &str) {
    tool("cmp", &[a, b]).ok();
}

#[test]
fn a_tree_becomes_a_volume_that_fits() {
    let lab = Lab::new();
    let (tree, image) = (tree(&lab), lab.str("disk.img"));
    stetfs(&["mkfs", &image, "--from", &tree, "-L", "content"]).ok();
    assert_clean(&image);
    assert_eq!(dumpe2fs(&image, "Filesystem volume name"), "content");
    // 3 MiB and 1.7 MB of files, and a journal of 4 MiB.
    let size = fs::metadata(&image).unwrap().len();
    assert!((9 << 20..14 << 20).contains(&size), "{size}");
    let out = lab.str("out");
    fs::create_dir(&out).unwrap();
    debugfs(&image, &format!("rdump / {out}"));
    fs::remove_dir(format!("{out}/lost+found")).unwrap();
    fs::remove_file(format!("{tree}/pipe")).unwrap();
    tool("diff", &["-r", "--no-dereference", &tree, &out]).ok();
    assert!(debugfs(&image, "stat /pipe").contains("Type: FIFO"));
    assert!(debugfs(&image, "stat /linked").contains("Links: 2"));
    let special = debugfs(&image, "stat /deep/set-id");
    assert!(special.contains("Mode:  04755"), "{special}");
    assert!(special.contains("mtime: 0x499602d2:1d6f3454"), "{special}");
    // Forty blocks, and one that maps them.
    assert!(debugfs(&image, "stat /deep/sparse").contains("Blockcount: 328"));

    let larger = lab.str("larger.img");
    stetfs(&["mkfs", &larger, "--from", &tree, "--free", "20M"]).ok();
    let free = |image: &str| dumpe2fs(image, "Free blocks").parse::<u64>().unwrap() * 4096;
    assert!((20 << 20..24 << 20).contains(&free(&larger)));
    assert!(free(&image) < 2 << 20);
    let inodes = dumpe2fs(&larger, "Free inodes").parse::<u32>().unwrap();
    assert!(inodes >= 20 << 6, "{inodes}");
}

/// The kernel shows the tree that it shows of the original.
#[test]
fn the_kernel_sees_the_same_tree() {
    if !rustix::process::geteuid().is_root() || tool("losetup", &["-f"]).code != 0 {
        eprintln!("SKIPPED: only root can ask the kernel to mount it");
        return;
    }
    let lab = Lab::new();
    let (tree, image) = (tree(&lab), lab.str("disk.img"));
    tool(
        "setfattr",
        &["-n", "user.note", "-v", "kept", &format!("{tree}/linked")],
    );
    for block_size in ["1K", "4K"] {
        for kind in ["ext3", "ext4"] {
            let args = [
                "mkfs",
                &image,
                "--from",
                &tree,
                "--force",
                "--block-size",
                block_size,
                "--type",
                kind,
            ];
            stetfs(&args).ok();
            assert_clean(&image);
            let dir = lab.str("mnt");
            fs::create_dir_all(&dir).unwrap();
            tool("mount", &["-o", "loop,ro", &image, &dir]).ok();
            let list = |dir: &str| {
                let format = "%P %y %m %U %G %s %T@ %l\n";
                let args = [
                    dir,
                    "-path",
                    "*/lost+found",
                    "-prune",
                    "-o",
                    "-printf",
                    format,
                ];
                let found = tool("find", &args).ok();
                let mut lines: Vec<_> = found
                    .lines()
                    .map(|line| {
                        let mut words: Vec<_> = line.split(' ').map(str::to_owned).collect();
                        // Sizes of directories are the file system's own.
                        let at = words.len() - 3;
                        if words.contains(&"d".to_owned()) {
                            words[at].clear();
                        }
                        words.join(" ")
                    })
                    .collect();
                lines.sort();
                lines
            };
            let (theirs, ours) = (list(&tree), list(&dir));
            let content = tool(
                "diff",
                &["-r", "--no-dereference", "--exclude=pipe", &tree, &dir],
            );
            let attributes = tool(
                "getfattr",
                &["--only-values", "-n", "user.note", &format!("{dir}/linked")],
            );
            crate::run::unmount(&dir);
            assert_eq!(theirs, ours);
            assert_eq!(content.out, format!("Only in {dir}: lost+found\n"));
            assert!(
                attributes.code != 0 || attributes.out == "kept",
                "{attributes:?}"
            );
        }
    }
}

#[test]
fn the_same_content_makes_the_same_bytes() {
    let lab = Lab::new();
    let (tree, a, b) = (tree(&lab), lab.str("a.img"), lab.str("b.img"));
    stetfs_then(&["mkfs", &a, "--from", &tree, "--free", "20M"]).ok();
    // Reading changes the last access, and the order of a directory is the file system's.
    let copy = lab.str("copy");
    tool("cp", &["-a", &tree, &copy]).ok();
    stetfs_then(&["mkfs", &b, "--from", &copy, "--free", "20M"]).ok();
    assert_same(&a, &b);
    assert!(dumpe2fs(&a, "Filesystem created").contains("Sun Sep 13 12:26:40 2020"));
    // No time is later than the epoch.
    let new = debugfs(&a, "stat /deep/large");
    assert!(new.contains("mtime: 0x5f5e1000:00000000"), "{new}");

    for image in [&a, &b] {
        let at = |path: &str| format!("{image}:{path}");
        stetfs_then(&["cp", "-a", &tree, &at("/again")]).ok();
        stetfs_then(&["rm", "-r", &at("/many")]).ok();
        assert_clean(image);
    }
    assert_same(&a, &b);

    fs::write(format!("{copy}/one more"), "").unwrap();
    stetfs_then(&["mkfs", &b, "--force", "--from", &copy]).ok();
    let uuid = |image: &str| dumpe2fs(image, "Filesystem UUID");
    assert_ne!(uuid(&a), uuid(&b));
}

#[test]
fn an_archive_makes_the_bytes_that_its_directory_makes() {
    if !has("tar") {
        return;
    }
    let lab = Lab::new();
    let (tree, a, b) = (tree(&lab), lab.str("a.img"), lab.str("b.img"));
    stetfs_then(&["mkfs", &a, "--from", &tree]).ok();
    for format in ["gnu", "pax"] {
        let archive = lab.str("tree.tar");
        let format = format!("--format={format}");
        tool(
            "tar",
            &["-cf", &archive, &*format, "--sparse", "-C", &tree, "."],
        )
        .ok();
        let ran = stetfs_then(&["mkfs", &b, "--force", "--from", &archive]);
        if format == "--format=pax" {
            ran.ok();
            assert_same(&a, &b);
        } else {
            // Its times are whole seconds.
            ran.ok();
            assert_clean(&b);
            let sparse = lab.str("sparse");
            debugfs(&b, &format!("dump /deep/sparse {sparse}"));
            assert_same(&sparse, &format!("{tree}/deep/sparse"));
        }
    }
}

/// Names and attributes whose bytes could pass for records of an extended header. A record ends
/// where its length says; a reader that looks for newlines misreads these.
#[test]
fn newlines_in_an_archive_are_read_as_tar_reads_them() {
    let lab = Lab::new();
    let tree = lab.path("tree");
    fs::create_dir(&tree).unwrap();
    let file = tree.join("file");
    fs::write(&file, "content").unwrap();
    let values: [(&str, &[u8]); 5] = [
        ("user.value", b"a\n12 size=999\n\n\0b\n"),
        ("user.one newline", b"\n"),
        ("user.none", b""),
        ("user.a=%3D%25", b"="),
        ("user.new\nline", b"x"),
    ];
    for (name, value) in values {
        let set = rustix::fs::setxattr(&file, name, value, XattrFlags::empty());
        if set.is_err() || !has("tar") {
            eprintln!("SKIPPED: {} keeps no attributes of users", tree.display());
            return;
        }
    }
    // Names of more than 100 bytes are in an extended header.
    let long = "n".repeat(100);
    let dir = tree.join(format!("d\n20 path=elsewhere\n{long}"));
    fs::create_dir(&dir).unwrap();
    let other = dir.join(format!("\n{long}\n"));
    fs::write(&other, "other").unwrap();
    fs::hard_link(&other, tree.join(format!("hard\n{long}"))).unwrap();
    symlink(format!("to\n\n{long}"), tree.join("link")).unwrap();

    let (archive, unpacked) = (lab.str("tree.tar"), lab.str("unpacked"));
    let (a, b) = (lab.str("a.img"), lab.str("b.img"));
    fs::create_dir(&unpacked).unwrap();
    let packs = ["--format=pax", "--xattrs", "-C", tree.to_str().unwrap()];
    tool("tar", &[&["-cf", &archive][..], &packs, &["."]].concat()).ok();
    let unpacks = ["--xattrs", "--xattrs-include=*", "-C", &unpacked];
    tool("tar", &[&["-xf", &archive][..], &unpacks].concat()).ok();
    stetfs_then(&["mkfs", &a, "--from", &unpacked]).ok();
    stetfs_then(&["mkfs", &b, "--from", &archive]).ok();
    assert_clean(&b);
    assert_same(&a, &b);
    let value = lab.str("value");
    debugfs(&b, &format!("ea_get -f {value} /file user.value"));
    assert_eq!(fs::read(value).unwrap(), values[0].1);
}

/// A member of an archive without content: name, type, target.
pub(crate) type Member<'a> = (&'a str, u8, &'a str);

/// Writes an archive.
fn archive(path: &Path, members: &[Member]) {
    let members: Vec<_> = members.iter().map(|member| (*member, &[][..])).collect();
    archive_of(path, &members);
}

/// A member with content.
pub(crate) type Full<'a> = (Member<'a>, &'a [u8]);

/// Writes an archive of members with contents.
pub(crate) fn archive_of(path: &Path, members: &[Full]) {
    let mut bytes = Vec::new();
    for ((name, kind, target), content) in members {
        let mut header = [0; 512];
        header[..name.len()].copy_from_slice(name.as_bytes());
        header[100..108].copy_from_slice(b"0000644\0");
        header[108..116].copy_from_slice(b"0000000\0");
        header[116..124].copy_from_slice(b"0000000\0");
        header[124..136].copy_from_slice(format!("{:011o}\0", content.len()).as_bytes());
        header[136..148].copy_from_slice(b"00000000000\0");
        header[156] = *kind;
        header[157..157 + target.len()].copy_from_slice(target.as_bytes());
        header[257..265].copy_from_slice(b"ustar\x0000");
        header[148..156].fill(b' ');
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        bytes.extend(header);
        bytes.extend(*content);
        bytes.resize(bytes.len().next_multiple_of(512), 0);
    }
    bytes.resize(bytes.len() + 1024, 0);
    fs::write(path, bytes).unwrap();
}

#[test]
fn a_hostile_archive_leads_nowhere() {
    let lab = Lab::new();
    let (tar, image) = (lab.path("bad.tar"), lab.str("disk.img"));
    let outside = lab.str("outside");
    fs::create_dir(&outside).unwrap();
    let from = ["mkfs", &image, "--from", tar.to_str().unwrap()];
    let bad: [(&[Member], &str); 8] = [
        (
            &[("../outside/x", b'0', "")],
            "member ../outside/x: leads out of the archive",
        ),
        (&[("a/../../x", b'0', "")], "leads out of the archive"),
        (
            &[("l", b'2', &outside), ("l/x", b'0', "")],
            "leads through l, which is a symlink",
        ),
        (
            &[("f", b'0', ""), ("f/x", b'0', "")],
            "leads through f, which is a file",
        ),
        (&[("x", b'1', "../outside/y")], "leads out of the archive"),
        (
            &[("x", b'1', "none")],
            "a link to none, which is no member before it",
        ),
        (
            &[("d", b'5', ""), ("x", b'1', "d")],
            "a link to d, which is a directory",
        ),
        (
            &[("d/e", b'5', ""), ("d", b'0', "")],
            "would replace a directory",
        ),
    ];
    for (members, words) in bad {
        archive(&tar, members);
        stetfs(&from).fails(1, &["bad.tar", words]);
        assert!(!fs::exists(&image).unwrap());
    }
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);

    // What is good of the same kind: slashes before a name, a member that comes twice, links.
    archive(
        &tar,
        &[
            ("/abs/file", b'0', ""),
            ("l", b'2', "/etc"),
            ("twice", b'0', ""),
            ("hard", b'1', "twice"),
            ("twice", b'2', "abs"),
        ],
    );
    stetfs(&from).ok();
    assert_clean(&image);
    assert!(debugfs(&image, "stat /hard").contains("Links: 1"));
    assert!(debugfs(&image, "stat /twice").contains("Type: symlink"));
    assert!(debugfs(&image, "stat /abs/file").contains("Type: regular"));

    fs::write(&tar, b"\x1f\x8b\x08 no archive").unwrap();
    stetfs(&["mkfs", &image, "--force", "--from", tar.to_str().unwrap()])
        .fails(1, &["bad.tar", "compressed by gzip"]);
    for (bytes, words) in [
        (
            &b"BZh9 is what bzip2 begins with"[..],
            ["bzip2", "unpack it first"],
        ),
        (
            b"nothing that is known",
            ["no header of tar", "gzip, xz and zstd"],
        ),
    ] {
        fs::write(&tar, bytes).unwrap();
        stetfs(&["mkfs", &image, "--force", "--from", tar.to_str().unwrap()]).fails(1, &words);
    }
    assert_clean(&image);
}

#[test]
fn bad_extended_headers_are_refused() {
    let lab = Lab::new();
    let (tar, image) = (lab.path("bad.tar"), lab.str("disk.img"));
    let from = ["mkfs", &image, "--force", "--from", tar.to_str().unwrap()];
    let (x, global, f) = (("x", b'x', ""), ("g", b'g', ""), ("f", b'0', ""));
    let bad: [(&[Full], &str); 8] = [
        (
            &[(x, b"7 a=b\n"), (f, b"")],
            "member f: has an extended header with a malformed",
        ),
        (
            &[(x, b"9 size=x\n"), (f, b"")],
            "member f: has the size `x`",
        ),
        (
            &[(x, b"12 size=513\n"), (f, b"1"), (f, b"2")],
            "no header of tar at byte 2560",
        ),
        (&[(x, b"12 size=999999\n"), (f, b"1")], "malformed"),
        (
            &[(x, b"15 size=999999\n"), (f, b"1")],
            "member f: the archive ends inside of it",
        ),
        (&[(x, b"9 path=a\n")], "ends behind an extended header"),
        (
            &[(x, b"9 path=a\n"), (x, b"9 path=b\n"), (f, b"")],
            "two extended headers",
        ),
        (&[(global, b"x")], "malformed"),
    ];
    for (members, words) in bad {
        archive_of(&tar, members);
        stetfs(&from).fails(1, &["bad.tar", words]);
        assert!(!fs::exists(&image).unwrap());
    }
}

/// A global header describes all members behind it, the others the next one.
#[test]
fn global_headers_are_read_as_tar_reads_them() {
    let lab = Lab::new();
    if !has("tar") {
        return;
    }
    let (tar, image) = (lab.path("tree.tar"), lab.str("disk.img"));
    let (x, global, long) = (("x", b'x', ""), ("g", b'g', ""), ("l", b'L', ""));
    let (f, g) = (("f", b'0', ""), ("g", b'0', ""));
    let members: [Full; 7] = [
        (f, b"1"),
        (global, b"9 uid=42\n9 gid=43\n"),
        (x, b"9 uid=44\n"),
        (g, b"22"),
        (long, b"long\0"),
        (f, b"333"),
        (("h", b'0', ""), b""),
    ];
    archive_of(&tar, &members);
    stetfs(&["mkfs", &image, "--from", tar.to_str().unwrap()]).ok();
    assert_clean(&image);
    let unpacked = lab.str("unpacked");
    fs::create_dir(&unpacked).unwrap();
    tool(
        "tar",
        &[
            "-C",
            &unpacked,
            "--numeric-owner",
            "--same-owner",
            "-xf",
            tar.to_str().unwrap(),
        ],
    )
    .ok();
    for name in ["f", "g", "long", "h"] {
        let ours = debugfs(&image, &format!("stat /{name}"));
        let theirs = fs::metadata(format!("{unpacked}/{name}")).unwrap();
        let (uid, gid, size) = (theirs.uid(), theirs.gid(), theirs.len());
        let words = [
            format!("User: {uid:5} "),
            format!("Group: {gid:5} "),
            format!("Size: {size}"),
        ];
        for word in words {
            assert!(ours.contains(&word), "{name}: {word}: {ours}");
        }
    }
}

#[test]
fn what_does_not_fit_together_is_refused() {
    let lab = Lab::new();
    let (tree, image) = (tree(&lab), lab.str("disk.img"));
    stetfs(&["mkfs", &image, "--from", &lab.str("none")]).fails(1, &["none", "No such file"]);
    stetfs(&["mkfs", &image, "--free", "1M"]).fails(2, &["--from"]);
    stetfs(&[
        "mkfs", &image, "--from", &tree, "--size", "64M", "--free", "1M",
    ])
    .fails(2, &["--size"]);
    stetfs(&["mkfs", &image, "--from", &tree, "--size", "9M"]).fails(1, &["no room"]);
    assert!(!fs::exists(&image).unwrap());
    for time in ["now", "-1", "15032385536"] {
        let variable = format!("SOURCE_DATE_EPOCH={time}");
        let ran = tool("env", &[&variable, STETFS, "mkfs", &image, "--from", &tree]);
        ran.fails(2, &["SOURCE_DATE_EPOCH", time, "seconds since 1970"]);
    }
    let inside = format!("{tree}/disk.img");
    stetfs(&["mkfs", &inside, "--from", &tree]).fails(1, &["is an image that this command"]);
    assert!(!fs::exists(&inside).unwrap());
    stetfs(&["mkfs", &image, "--from", &tree, "--size", "64M"]).ok();
    assert_clean(&image);
    assert_eq!(fs::metadata(&image).unwrap().len(), 64 << 20);
}
