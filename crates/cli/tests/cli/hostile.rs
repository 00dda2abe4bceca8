//! Images that were made to do harm: names that lead elsewhere, directories that lead back, files
//! without end, names that are commands to a terminal. Nothing leaves the directory that the user
//! named, and every command ends.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};

use crate::run::{Lab, debugfs, debugfs_write, json, stetfs, tool};

/// Makes an image of this tree, without checksums and hash trees, so that its bytes can be changed.
fn image_of(lab: &Lab, tree: &Path, kind: &str) -> String {
    let image = lab.str("disk.img");
    let features = "^metadata_csum,^dir_index,^64bit,^resize_inode";
    let tree = tree.to_str().unwrap();
    let args = ["-q", "-F", "-t", kind, "-b", "1024", "-O", features];
    let args = [&args[..], &["-d", tree, &image, "4M"]].concat();
    tool("mke2fs", &args).ok();
    image
}

/// Changes bytes that occur once in the image.
fn change(image: &str, old: &[u8], new: &[u8]) {
    assert_eq!(old.len(), new.len());
    let mut bytes = fs::read(image).unwrap();
    let places: Vec<usize> = bytes
        .windows(old.len())
        .enumerate()
        .filter_map(|(at, window)| (window == old).then_some(at))
        .collect();
    assert_eq!(places.len(), 1, "{}", old.escape_ascii());
    bytes[places[0]..][..new.len()].copy_from_slice(new);
    fs::write(image, bytes).unwrap();
}

/// Returns everything below `dir`, except what is in `but`.
fn everything(dir: &Path, but: &Path) -> BTreeSet<PathBuf> {
    let mut all = BTreeSet::new();
    let mut todo = vec![dir.to_owned()];
    while let Some(dir) = todo.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path == but {
                continue;
            }
            if path.symlink_metadata().unwrap().is_dir() {
                todo.push(path.clone());
            }
            all.insert(path);
        }
    }
    all
}

#[test]
fn names_that_lead_out_of_the_target() {
    for name in [
        "../../pwn",
        "../pwn/..",
        "/pwned/by",
        "evil\0name",
        "..",
        ".",
    ] {
        let lab = Lab::new();
        let tree = lab.path("tree");
        fs::create_dir_all(tree.join("evil")).unwrap();
        fs::create_dir_all(tree.join("good")).unwrap();
        fs::write(tree.join("evil/some-name"), "evil").unwrap();
        // The file to which the name leads when the image itself is walked by it.
        fs::write(tree.join("pwn"), "evil").unwrap();
        fs::write(tree.join("good/file"), "good").unwrap();
        let image = image_of(&lab, &tree, "ext4");
        let old = [&[9, 1][..], b"some-name"].concat();
        let mut new = old.clone();
        new[0] = name.len() as u8;
        new[2..2 + name.len()].copy_from_slice(name.as_bytes());
        change(&image, &old, &new);

        fs::create_dir_all(lab.path("a/b")).unwrap();
        let out = lab.str("a/b/out");
        let before = everything(&lab.path(""), Path::new(&out));
        let words = match name {
            "." | ".." => "where only other names may be",
            _ => "a slash or a zero byte in its name",
        };
        for flag in ["-r", "-a"] {
            stetfs(&["cp", flag, &lab.place("/"), &out])
                .fails(1, &[words, &lab.place("/evil"), "fsck -n"]);
            // The rest is copied, and nothing is anywhere else.
            assert_eq!(
                fs::read_to_string(format!("{out}/good/file")).unwrap(),
                "good"
            );
            assert_eq!(
                fs::read_dir(format!("{out}/evil")).map_or(0, |d| d.count()),
                0
            );
            assert_eq!(everything(&lab.path(""), Path::new(&out)), before);
            fs::remove_dir_all(&out).unwrap();
        }
        stetfs(&["ls", "-laR", &image]).fails(1, &[words, &lab.place("/evil")]);
        stetfs(&["rm", "-r", &lab.place("/evil")]).fails(1, &[words]);
        stetfs(&["fsck", "-n", &image]).fails(4, &[]);
    }
}

#[test]
fn links_that_a_directory_comes_after() {
    // A link and a directory of one name, in either order.
    for (link, dir) in [("trap-1", "trap-2"), ("trap-2", "trap-1")] {
        let lab = Lab::new();
        let (tree, outside, out) = (lab.path("tree"), lab.path("outside"), lab.str("out"));
        fs::create_dir(&outside).unwrap();
        fs::create_dir_all(tree.join(dir)).unwrap();
        fs::write(tree.join(dir).join("pwn"), "evil").unwrap();
        symlink(&outside, tree.join(link)).unwrap();
        let image = image_of(&lab, &tree, "ext4");
        change(&image, link.as_bytes(), b"trap-0");
        change(&image, dir.as_bytes(), b"trap-0");
        for _ in 0..2 {
            // The second time, the first one's link exists.
            stetfs(&["cp", "-a", &lab.place("/"), &out]);
            assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
        }
        // A link that was there before.
        let _ = fs::remove_file(format!("{out}/trap-0"));
        let _ = fs::remove_dir_all(format!("{out}/trap-0"));
        symlink(&outside, format!("{out}/trap-0")).unwrap();
        stetfs(&["cp", "-r", &lab.place("/"), &out]);
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
    }
}

#[test]
fn directories_that_lead_back_end() {
    let lab = Lab::new();
    let tree = lab.path("tree");
    fs::create_dir_all(tree.join("a/b")).unwrap();
    fs::create_dir_all(tree.join("c")).unwrap();
    fs::write(tree.join("a/file"), "whole").unwrap();
    let image = image_of(&lab, &tree, "ext4");
    // Links to the directory above, to one beside, and twice to one below.
    debugfs_write(
        &image,
        &["ln a a/b/up", "ln a c/beside", "ln a/b a/b-again"],
    );
    let out = lab.str("out");
    stetfs(&["cp", "-r", &lab.place("/"), &out]).fails(
        1,
        &[
            &lab.place("/a/b/up"),
            &lab.place("/c/beside"),
            &lab.place("/a/b-again"),
            "its \"..\" is inode",
            "has a second name here",
            "3 files were not copied",
        ],
    );
    assert_eq!(fs::read_to_string(lab.path("out/a/file")).unwrap(), "whole");
    let copied = everything(Path::new(&out), Path::new(""));
    assert_eq!(copied.len(), 5, "{copied:?}");

    let ran = stetfs(&["ls", "-R", &image]);
    let titles = ran.out.matches(":\n").count();
    assert_eq!(titles, 5, "{}", ran.out);
    ran.fails(1, &[&lab.place("/a/b/up"), &lab.place("/c/beside")]);
    let ran = stetfs(&["ls", "-R", "--json", &image]);
    assert_eq!(json(&ran.out).as_array().unwrap().len(), 8);

    // What is elsewhere is not removed together with the name that leads there.
    stetfs(&["rm", "-r", &lab.place("/c")]).fails(1, &[&lab.place("/c/beside"), "fsck -n"]);
    assert_eq!(debugfs(&image, "cat /a/file"), "whole");
}

/// 64 MiB in a volume of 4 MiB: one block, named by 65,536 pointers.
#[test]
fn a_file_without_end() {
    let lab = Lab::new();
    let tree = lab.path("tree");
    fs::create_dir(&tree).unwrap();
    for (name, content) in [
        ("big", vec![1; 100]),
        ("map-1", vec![2; 1024]),
        ("map-2", vec![3; 1024]),
    ] {
        fs::write(tree.join(name), content).unwrap();
    }
    let image = image_of(&lab, &tree, "ext3");
    let block = |name: &str| {
        debugfs(&image, &format!("blocks /{name}"))
            .trim()
            .parse::<u32>()
    };
    let [data, first, second] = ["big", "map-1", "map-2"].map(|name| block(name).unwrap());
    change(&image, &[2; 1024], &second.to_le_bytes().repeat(256));
    change(&image, &[3; 1024], &data.to_le_bytes().repeat(256));
    debugfs_write(
        &image,
        &[
            &format!("set_inode_field /big block[DIND] {first}"),
            "set_inode_field /big size 67000000",
        ],
    );
    let out = lab.str("out");
    stetfs(&["cp", "-r", &lab.place("/"), &out]).fails(
        1,
        &[
            &lab.place("/big"),
            "hold more bytes than the whole image",
            "fsck -n",
        ],
    );
    let copied = lab.path("out/big").metadata().unwrap().blocks() * 512;
    assert!(copied <= 4 << 20, "{copied} bytes");
}

#[test]
fn names_are_shown_and_not_obeyed() {
    let lab = Lab::new();
    let tree = lab.path("tree");
    let evil = [
        &b"red\x1b[31m"[..],
        b"line\nbreak",
        b"not-\xff-utf8",
        b"c1-\xc2\x9b31m",
        b"...hidden\r",
    ];
    for name in evil {
        fs::create_dir_all(tree.join(OsStr::from_bytes(name))).unwrap();
    }
    symlink(OsStr::from_bytes(b"to\x1b]0;title\x07"), tree.join("link")).unwrap();
    fs::create_dir(tree.join("Größe")).unwrap();
    let image = image_of(&lab, &tree, "ext4");
    for args in [&["-a"][..], &["-laR"], &["-ai"]] {
        let args = [&["ls"], args, &[image.as_str()]].concat();
        let out = stetfs(&args).ok();
        assert!(
            !out.contains(|c: char| c.is_control() && c != '\n'),
            "{out:?}"
        );
        for shown in [
            "red\\033[31m",
            "line\\nbreak",
            "not-\\377-utf8",
            "c1-\\302\\23331m",
            "Größe",
            "...hidden\\r",
        ] {
            assert!(out.contains(shown), "no {shown} in {out}");
        }
    }
    assert!(
        stetfs(&["ls", "-l", &image])
            .ok()
            .contains("-> to\\033]0;title\\a")
    );
    // Without -a, names that begin with a dot are hidden, as by ls.
    assert!(!stetfs(&["ls", &image]).ok().contains("hidden"));
    // Messages escape names, too.
    for name in evil {
        let place = [lab.place("/").as_bytes(), name].concat();
        let ran = tool(
            crate::run::STETFS,
            &[OsStr::new("cat"), OsStr::from_bytes(&place)],
        );
        assert!(
            !ran.err.contains(|c: char| c.is_control() && c != '\n'),
            "{:?}",
            ran.err
        );
        ran.fails(1, &["is a directory"]);
    }
}
