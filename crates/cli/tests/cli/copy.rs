//! cp: a tree with one file of every kind goes in, debugfs and e2fsck read it, and it comes out the
//! same.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, Mode, Timespec, Timestamps, XattrFlags};

use crate::run::{Lab, assert_clean, debugfs, has, stetfs, tool, wait_until};

/// What must survive a copy with -a: everything but inode number and change time.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    kind: char,
    mode: u32,
    owner: (u32, u32),
    size: u64,
    links: u64,
    mtime: (i64, i64),
    content: Vec<u8>,
    xattrs: Vec<(String, Vec<u8>)>,
    rdev: u64,
}

fn seen(path: &Path) -> Seen {
    let meta = path.symlink_metadata().unwrap();
    let kind = meta.file_type();
    let (letter, content) = if kind.is_dir() {
        ('d', Vec::new())
    } else if kind.is_symlink() {
        (
            'l',
            fs::read_link(path)
                .unwrap()
                .into_os_string()
                .into_encoded_bytes(),
        )
    } else if kind.is_file() {
        ('-', fs::read(path).unwrap())
    } else {
        (if kind.is_fifo() { 'p' } else { 'c' }, Vec::new())
    };
    Seen {
        kind: letter,
        mode: meta.permissions().mode() & 0o7777,
        owner: (meta.uid(), meta.gid()),
        size: if kind.is_dir() { 0 } else { meta.size() },
        links: if kind.is_dir() { 0 } else { meta.nlink() },
        mtime: (meta.mtime(), meta.mtime_nsec()),
        content,
        xattrs: xattrs(path),
        rdev: meta.rdev(),
    }
}

fn xattrs(path: &Path) -> Vec<(String, Vec<u8>)> {
    let mut names = vec![0; 65_536];
    let n = rustix::fs::llistxattr(path, &mut names[..]).unwrap_or(0);
    let names = names[..n]
        .split(|b| *b == 0)
        .filter(|name| name.starts_with(b"user.") || name.starts_with(b"system."));
    let mut all: Vec<_> = names
        .map(|name| {
            let name = String::from_utf8(name.to_vec()).unwrap();
            let mut value = vec![0; 65_536];
            let n = rustix::fs::lgetxattr(path, name.as_str(), &mut value[..]).unwrap();
            (name, value[..n].to_vec())
        })
        .collect();
    all.sort();
    all
}

fn tree(root: &Path) -> BTreeMap<String, Seen> {
    let mut all = BTreeMap::new();
    walk(root, root, &mut all);
    all
}

fn walk(root: &Path, dir: &Path, all: &mut BTreeMap<String, Seen>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path
            .strip_prefix(root)
            .unwrap()
            .to_str()
            .unwrap()
            .to_owned();
        let found = seen(&path);
        if found.kind == 'd' {
            walk(root, &path, all);
        }
        all.insert(name, found);
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Makes a tree with one file of every kind.
fn make_tree(root: &Path) {
    fs::create_dir_all(root.join("dir/empty")).unwrap();
    fs::write(root.join("text"), "some text\n").unwrap();
    fs::write(root.join("nothing"), "").unwrap();
    fs::write(
        root.join("dir/large"),
        (0..3_000_000u32)
            .map(|i| (i >> 7) as u8)
            .collect::<Vec<_>>(),
    )
    .unwrap();
    let sparse = File::create(root.join("sparse")).unwrap();
    sparse.write_all_at(b"begin", 0).unwrap();
    sparse.write_all_at(b"end", 5 << 20).unwrap();
    sparse.set_len(6 << 20).unwrap();
    symlink("text", root.join("link")).unwrap();
    symlink("x/".repeat(100), root.join("long-link")).unwrap();
    symlink("nowhere", root.join("dangling")).unwrap();
    fs::hard_link(root.join("text"), root.join("dir/same-text")).unwrap();
    rustix::fs::mknodat(
        CWD,
        root.join("fifo"),
        FileType::Fifo,
        Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    fs::write(root.join("caf\u{e9} name with blanks"), "odd").unwrap();
    for (name, mode) in [
        ("text", 0o4751),
        ("nothing", 0o400),
        ("dir", 0o2750),
        ("dir/empty", 0o1777),
    ] {
        fs::set_permissions(root.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    for (name, value) in [
        ("user.colour", b"blue".as_slice()),
        ("user.large", &[7; 700]),
    ] {
        let set = rustix::fs::setxattr(root.join("text"), name, value, XattrFlags::empty());
        if let Err(e) = set {
            eprintln!(
                "the host's file system has no user attributes here ({e}): they are not tested"
            );
        }
    }
    if is_root() {
        rustix::fs::mknodat(
            CWD,
            root.join("null"),
            FileType::CharacterDevice,
            Mode::from_raw_mode(0o666),
            rustix::fs::makedev(1, 3),
        )
        .unwrap();
        std::os::unix::fs::lchown(root.join("link"), Some(1000), Some(1001)).unwrap();
        std::os::unix::fs::chown(root.join("dir/large"), Some(70_000), Some(80_000)).unwrap();
    }
    // Set times last, and the deepest first: each new name changes its directory's time.
    for (i, name) in [
        "text",
        "sparse",
        "link",
        "dir/large",
        "dir/empty",
        "fifo",
        "dir",
    ]
    .into_iter()
    .enumerate()
    {
        let time = Timespec {
            tv_sec: 1_000_000_000 + i as i64,
            tv_nsec: 123_456_789,
        };
        let times = Timestamps {
            last_access: time,
            last_modification: time,
        };
        rustix::fs::utimensat(CWD, root.join(name), &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
    }
}

#[test]
fn a_tree_goes_in_and_comes_out_the_same() {
    let lab = Lab::new();
    let image = lab.volume(&[]);
    let source = lab.path("source");
    make_tree(&source);
    let expected = tree(&source);
    stetfs(&["cp", "-a", source.to_str().unwrap(), &lab.place("/copy")]).ok();
    assert_clean(&image);
    assert_debugfs_agrees(&image);

    let out = lab.path("out");
    stetfs(&["cp", "-a", &lab.place("/copy"), out.to_str().unwrap()]).ok();
    assert_eq!(tree(&out), expected);
    let hole = out.join("sparse").metadata().unwrap();
    assert!(
        hole.blocks() * 512 < hole.size() / 2,
        "the hole was filled: {} of {}",
        hole.blocks() * 512,
        hole.size()
    );
    assert_clean(&image);
}

fn assert_debugfs_agrees(image: &str) {
    assert_eq!(debugfs(image, "cat /copy/text"), "some text\n");
    let text = debugfs(image, "stat /copy/text");
    assert!(
        text.contains("Mode:  04751") && text.contains("Links: 2"),
        "{text}"
    );
    assert!(text.contains("mtime: 0x3b9aca00:1d6f3454"), "{text}");
    assert_eq!(debugfs(image, "stat /copy/dir/same-text"), text);
    let blocks = |stat: &str| -> u64 {
        stat.split("Blockcount: ")
            .nth(1)
            .unwrap()
            .split_whitespace()
            .next()
            .unwrap()
            .parse()
            .unwrap()
    };
    assert!(
        blocks(&debugfs(image, "stat /copy/sparse")) <= 3 * 8,
        "{}",
        debugfs(image, "stat /copy/sparse")
    );
    assert!(debugfs(image, "stat /copy/link").contains("Fast link dest: \"text\""));
    assert!(debugfs(image, "stat /copy/fifo").contains("Type: FIFO"));
    if is_root() {
        assert!(debugfs(image, "stat /copy/null").contains("Device major/minor number: 01:03"));
        assert!(debugfs(image, "stat /copy/dir/large").contains("User: 70000   Group: 80000"));
    }
}

#[test]
fn what_mke2fs_wrote_comes_out_the_same() {
    let lab = Lab::new();
    let (image, source, out) = (lab.str("disk.img"), lab.path("source"), lab.path("out"));
    make_tree(&source);
    for kind in ["ext4", "ext3"] {
        tool(
            "mke2fs",
            &[
                "-q",
                "-F",
                "-t",
                kind,
                "-I",
                "256",
                "-d",
                source.to_str().unwrap(),
                &image,
                "32M",
            ],
        )
        .ok();
        stetfs(&["cp", "-a", &lab.place("/"), out.to_str().unwrap()]).ok();
        fs::remove_dir(out.join("lost+found")).unwrap();
        let (mut ours, mut theirs) = (tree(&out), tree(&source));
        // mke2fs keeps whole seconds.
        for seen in ours.values_mut().chain(theirs.values_mut()) {
            seen.mtime.1 = 0;
        }
        assert_eq!(ours, theirs, "{kind}");
        fs::remove_dir_all(&out).unwrap();
    }
}

#[test]
fn acls_are_kept() {
    if !has("setfacl") {
        return;
    }
    let lab = Lab::new();
    let image = lab.volume(&[]);
    let dir = lab.path("dir");
    fs::create_dir(&dir).unwrap();
    let set = tool(
        "setfacl",
        &["-m", "u:1234:rwx,d:g:77:r-x", dir.to_str().unwrap()],
    );
    if set.code != 0 {
        eprintln!(
            "SKIPPED: the host's file system has no ACLs here: {}",
            set.err
        );
        return;
    }
    let facl = |path: &Path| tool("getfacl", &["-cpn", path.to_str().unwrap()]).ok();
    stetfs(&["cp", "-a", dir.to_str().unwrap(), &lab.place("/dir")]).ok();
    stetfs(&[
        "cp",
        "-a",
        &lab.place("/dir"),
        lab.path("out").to_str().unwrap(),
    ])
    .ok();
    assert_eq!(facl(&lab.path("out")), facl(&dir));
    assert_clean(&image);
}

/// Asserts whose a file of the image is.
#[track_caller]
fn assert_owner(image: &str, path: &str, (uid, gid): (u32, u32)) {
    let stat = debugfs(image, &format!("stat {path}"));
    let words = [format!("User: {uid:5} "), format!("Group: {gid:5} ")];
    for word in words {
        assert!(stat.contains(&word), "{path}: {word}: {stat}");
    }
}

#[test]
fn copies_get_the_owners_that_are_wanted() {
    let lab = Lab::new();
    let image = lab.volume(&[]);
    let root = lab.path("tree");
    fs::create_dir_all(root.join("dir")).unwrap();
    fs::write(root.join("dir/f"), "x").unwrap();
    let meta = root.metadata().unwrap();
    let (uid, gid) = (meta.uid(), meta.gid());
    let tree = root.to_str().unwrap();
    let cp = |args: &[&str], to: &str| stetfs(&[&["cp"][..], args, &[&lab.place(to)]].concat());

    cp(&["-a", "--chown", "12:34", tree], "/all").ok();
    cp(&["-r", "--chown", ":34", tree], "/group").ok();
    cp(
        &["-a", "--owner-map", &format!("{uid}:70000:1"), tree],
        "/moved",
    )
    .ok();
    cp(
        &["-a", "--owner-map", &format!("g:{gid}:80000:1"), tree],
        "/moved-group",
    )
    .ok();
    let moved = if uid == gid { 70_000 } else { gid };
    for (dir, owners) in [
        ("/all", (12, 34)),
        ("/group", (uid, 34)),
        ("/moved", (70_000, moved)),
        ("/moved-group", (uid, 80_000)),
    ] {
        for path in [dir, &format!("{dir}/dir"), &format!("{dir}/dir/f")] {
            assert_owner(&image, path, owners);
        }
    }
    // An ACL names users too.
    let acl = [
        "-m",
        "u:100005:r,u:3:r,g:100006:r",
        &format!("{tree}/dir/f"),
    ];
    if has("setfacl") && tool("setfacl", &acl).code == 0 {
        cp(&["-a", "--owner-map", "100000:0:65536", tree], "/acl").ok();
        let out = lab.str("out");
        stetfs(&["cp", "-a", &lab.place("/acl/dir/f"), &out]).ok();
        let acl = tool("getfacl", &["-n", "-c", "--absolute-names", &out]).ok();
        assert!(
            acl.contains("user:3:r--\nuser:5:r--\n") && acl.contains("group:6:r--\n"),
            "{acl}"
        );
    }
    assert_clean(&image);
    cp(&["--owner-map", "0:1:1", tree], "/x").fails(2, &["--owner-map", "--archive"]);
    cp(&["--chown", "me", tree], "/x").fails(2, &["UID:GID"]);

    // The same while a volume is made.
    let image = lab.str("from.img");
    stetfs(&["mkfs", &image, "--from", tree, "--chown", "0:5"]).ok();
    assert_owner(&image, "/", (0, 5));
    assert_owner(&image, "/dir/f", (0, 5));
}

#[test]
fn plain_copies_and_their_targets() {
    let lab = Lab::new();
    let image = lab.volume(&[]);
    let file = lab.str("file");
    fs::write(&file, "one").unwrap();
    // Into a directory, onto a name, over a file, from one name to another in one image.
    stetfs(&["cp", &file, &lab.place("/")]).ok();
    stetfs(&["cp", &file, &lab.place("/named")]).ok();
    fs::write(&file, "two").unwrap();
    stetfs(&["cp", &file, &lab.place("/named")]).ok();
    stetfs(&["cp", "-n", &file, &lab.place("/file")]).ok();
    stetfs(&["cp", &lab.place("/named"), &lab.place("/again")]).ok();
    stetfs(&["mkdir", &lab.place("/d")]).ok();
    stetfs(&[
        "cp",
        &lab.place("/named"),
        &lab.place("/file"),
        &lab.place("/d"),
    ])
    .ok();
    for (path, content) in [
        ("/file", "one"),
        ("/named", "two"),
        ("/again", "two"),
        ("/d/named", "two"),
        ("/d/file", "one"),
    ] {
        assert_eq!(debugfs(&image, &format!("cat {path}")), content, "{path}");
    }
    stetfs(&["cp", &lab.place("/named"), lab.path("").to_str().unwrap()]).ok();
    assert_eq!(fs::read_to_string(lab.path("named")).unwrap(), "two");
    assert_clean(&image);
}

#[test]
fn from_image_to_image() {
    let lab = Lab::new();
    lab.volume(&[]);
    let other = lab.str("other.img");
    stetfs(&[
        "mkfs", &other, "--size", "16M", "--type", "ext3", "-b", "1K",
    ])
    .ok();
    let source = lab.path("source");
    make_tree(&source);
    stetfs(&["cp", "-a", source.to_str().unwrap(), &lab.place("/t")]).ok();
    stetfs(&["cp", "-a", &lab.place("/t"), &format!("{other}:/")]).ok();
    stetfs(&[
        "cp",
        "-a",
        &format!("{other}:/t"),
        lab.path("out").to_str().unwrap(),
    ])
    .ok();
    assert_eq!(tree(&lab.path("out")), tree(&source));
    assert_clean(&other);
}

#[test]
fn what_cannot_be_copied_is_told_and_the_rest_is_copied() {
    let lab = Lab::new();
    let image = lab.volume(&[]);
    let good = lab.str("good");
    fs::write(&good, "good").unwrap();
    stetfs(&["cp", "/nowhere/at-all", &good, &lab.place("/")]).fails(
        1,
        &["/nowhere/at-all: no such file", "1 file was not copied"],
    );
    assert_eq!(debugfs(&image, "cat /good"), "good");
    stetfs(&["cp", lab.path("").to_str().unwrap(), &lab.place("/")])
        .fails(1, &["is a directory", "-r or -a"]);
    stetfs(&["cp", &good, &good, &lab.place("/missing")]).fails(1, &["is not a directory"]);
    stetfs(&["cp", &good, &lab.place("/missing/x")])
        .fails(1, &[&lab.place("/missing/x"), "no such file"]);
    stetfs(&["cp", &lab.place("/good"), &lab.place("/good")]).fails(1, &["same file"]);
    stetfs(&["cp", "-r", &lab.place("/"), &lab.place("/inside")]).fails(1, &["into itself"]);
    stetfs(&["cp", "-r", &lab.place("/lost+found"), &lab.place("/good")]).fails(1, &["is a file"]);
    stetfs(&["cp", &good, &lab.str("elsewhere")])
        .fails(2, &["none of these places is in an image"]);
    assert_clean(&image);
}

#[test]
fn what_was_left_out_is_counted() {
    let lab = Lab::new();
    lab.volume(&["-b", "1K"]);
    let tree = lab.path("tree");
    fs::create_dir(&tree).unwrap();
    // A file with two names has no room in the volume: neither name is left. Then nothing has any
    // room.
    let big = File::create(tree.join("big")).unwrap();
    big.write_all_at(&vec![0x5a; 30 << 20], 0).unwrap();
    fs::hard_link(tree.join("big"), tree.join("big-2")).unwrap();
    fs::write(tree.join("small"), "small").unwrap();
    let tree = tree.to_str().unwrap();
    stetfs(&["cp", "-a", tree, &lab.place("/")]).fails(
        1,
        &[
            "/tree/big: ",
            "/tree/big-2: ",
            "no space left",
            "/tree/small: ",
            "3 files were not copied",
        ],
    );
    stetfs(&["rm", "-r", &lab.place("/tree")]).ok();
    // A file that is copied without all its attributes is counted apart.
    let odd = lab.str("odd");
    fs::write(&odd, "odd").unwrap();
    let large = vec![7; 5000];
    if rustix::fs::setxattr(&odd, "user.large", &large, XattrFlags::empty()).is_err() {
        eprintln!("SKIPPED: the host's file system has no large attributes here");
        return;
    }
    let missing = lab.str("missing");
    let ran = stetfs(&["cp", "-a", &odd, &missing, &lab.place("/")]);
    let words = "1 file was not copied, 1 file was copied without all of its attributes";
    ran.fails(1, &["without the extended attributes user.large", words]);
    assert_eq!(stetfs(&["cat", &lab.place("/odd")]).ok(), "odd");
}

/// A copy that is killed while it writes into an existing file leaves what cp(1) leaves: the file,
/// with a beginning of the new content. The image needs its journal replayed and nothing else.
#[test]
fn a_copy_that_is_killed_leaves_the_file_and_a_beginning() {
    let lab = Lab::new();
    let image = lab.volume(&[]);
    let old = lab.str("old");
    fs::write(&old, vec![b'o'; 3 << 20]).unwrap();
    stetfs(&["cp", &old, &lab.place("/f")]).ok();
    let before = debugfs(&image, "stat /f");
    let inode = |stat: &str| stat.split_whitespace().nth(1).map(str::to_owned);
    for written in [0, 1, 2_500_000] {
        // The pipe stays open, so the copy waits for more.
        let (read, write) = std::io::pipe().unwrap();
        let mut child = std::process::Command::new(crate::run::STETFS)
            .args(["cp", "/dev/stdin", &lab.place("/f")])
            .stdin(read)
            .spawn()
            .unwrap();
        std::io::Write::write_all(&mut &write, &vec![b'n'; written]).unwrap();
        let descriptors = format!("/proc/{}/fd", child.id());
        wait_until("the copy has the image open", || {
            let mut open = fs::read_dir(&descriptors).into_iter().flatten().flatten();
            open.any(|fd| fs::read_link(fd.path()).is_ok_and(|file| file == Path::new(&image)))
        });
        wait_until("the copy has read the pipe", || {
            rustix::io::ioctl_fionread(&write).unwrap() == 0
        });
        child.kill().unwrap();
        child.wait().unwrap();
        let fsck = tool("e2fsck", &["-fy", &image]);
        assert!(fsck.code <= 1, "{fsck:#?}");
        let after = debugfs(&image, "stat /f");
        assert_eq!(inode(&after), inode(&before));
        let content = tool("debugfs", &["-R", "cat /f", &image]).ok();
        let new = content.bytes().take_while(|b| *b == b'n').count();
        let rest = &content.as_bytes()[new..];
        let is_old = content.len() == 3 << 20 && rest.iter().all(|b| *b == b'o') && new == 0;
        assert!(
            new <= written && (rest.is_empty() || is_old),
            "{} bytes",
            content.len()
        );
        stetfs(&["cp", &old, &lab.place("/f")]).ok();
    }
    assert_clean(&image);
}

#[test]
fn the_image_itself_is_left_alone() {
    let lab = Lab::new();
    let image = lab.volume(&[]);
    fs::write(lab.path("f"), "f").unwrap();
    stetfs(&["cp", &lab.str("f"), &lab.place("/")]).ok();
    let before = crate::run::sha256(&image);
    stetfs(&["cp", &lab.place("/f"), &image]).fails(1, &["an image that this command works on"]);
    assert_eq!(crate::run::sha256(&image), before);
    stetfs(&["cp", &image, &lab.place("/")]).fails(1, &["an image that this command works on"]);
    stetfs(&["cp", "-r", lab.path("").to_str().unwrap(), &lab.place("/d")]).fails(
        1,
        &[
            "an image that this command works on",
            "1 file was not copied",
        ],
    );
    assert_eq!(stetfs(&["ls", &lab.place("/d")]).ok(), "f\n");
    assert_clean(&image);
}

/// Links are followed inside the image: an absolute one begins at the image's root.
#[test]
fn an_absolute_link_leads_to_the_images_own_root() {
    let lab = Lab::new();
    let image = lab.volume(&[]);
    let (dir, outside) = (lab.path("d"), lab.path("outside"));
    fs::create_dir(&dir).unwrap();
    fs::write(&outside, "untouched").unwrap();
    symlink(&outside, dir.join("link")).unwrap();
    symlink("/d/etc/name", dir.join("inside")).unwrap();
    fs::create_dir(dir.join("etc")).unwrap();
    fs::write(dir.join("etc/name"), "old").unwrap();
    stetfs(&["cp", "-a", dir.to_str().unwrap(), &lab.place("/")]).ok();
    fs::write(lab.path("new"), "new").unwrap();
    stetfs(&["cp", &lab.str("new"), &lab.place("/d/inside")]).ok();
    assert_eq!(debugfs(&image, "cat /d/etc/name"), "new");
    stetfs(&["cp", &lab.str("new"), &lab.place("/d/link")]).fails(1, &["does not exist"]);
    stetfs(&["cat", &lab.place("/d/link")]).fails(1, &["no such file"]);
    assert_eq!(fs::read_to_string(&outside).unwrap(), "untouched");
    assert_clean(&image);
}

#[test]
fn a_full_volume_is_told_and_stays_sound() {
    let lab = Lab::new();
    let image = lab.volume(&[]);
    let big = lab.path("big");
    File::create(&big)
        .unwrap()
        .write_all_at(&vec![0x5a; 30 << 20], 0)
        .unwrap();
    let small = lab.path("small");
    fs::write(&small, "small").unwrap();
    stetfs(&["cp", big.to_str().unwrap(), &lab.place("/")])
        .fails(1, &[&lab.place("/big"), "no space left"]);
    assert_clean(&image);
    stetfs(&["rm", &lab.place("/big")]).ok();
    stetfs(&["cp", small.to_str().unwrap(), &lab.place("/")]).ok();
    assert_eq!(debugfs(&image, "cat /small"), "small");
    assert_clean(&image);
}
