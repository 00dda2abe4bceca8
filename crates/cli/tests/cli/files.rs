//! ls, cat, mkdir and rm on an image: they read what mke2fs -d put there, and debugfs reads what
//! they change.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use crate::run::{Lab, assert_clean, debugfs, dumpe2fs, json, stetfs, tool};

/// Makes an image that mke2fs fills from a directory.
fn filled() -> (Lab, String) {
    let lab = Lab::new();
    let image = lab.str("disk.img");
    let tree = lab.path("tree");
    fs::create_dir_all(tree.join("docs/deep")).unwrap();
    fs::write(tree.join("hello"), "hello, world\n").unwrap();
    fs::write(tree.join("docs/large"), vec![b'L'; 300_000]).unwrap();
    fs::write(tree.join("docs/deep/.hidden"), "").unwrap();
    symlink("hello", tree.join("short")).unwrap();
    symlink("docs/".repeat(30), tree.join("long")).unwrap();
    fs::set_permissions(tree.join("hello"), fs::Permissions::from_mode(0o4751)).unwrap();
    tool(
        "mke2fs",
        &[
            "-q",
            "-t",
            "ext4",
            "-d",
            tree.to_str().unwrap(),
            &image,
            "16M",
        ],
    )
    .ok();
    (lab, image)
}

#[test]
fn ls_shows_what_is_there() {
    let (lab, image) = filled();
    assert_eq!(
        stetfs(&["ls", &image]).ok(),
        "docs\nhello\nlong\nlost+found\nshort\n"
    );
    assert_eq!(stetfs(&["ls", &lab.place("/docs")]).ok(), "deep\nlarge\n");
    assert_eq!(stetfs(&["ls", &lab.place("/docs/deep")]).ok(), "");
    assert_eq!(
        stetfs(&["ls", "-a", &lab.place("/docs/deep")]).ok(),
        ".hidden\n"
    );
    let long = stetfs(&["ls", "-l", &lab.place("/hello")]).ok();
    assert!(
        long.starts_with("-rwsr-x--x 1") && long.contains(" 13 "),
        "{long}"
    );
    let links = stetfs(&["ls", "-l", &image]).ok();
    assert!(links.contains("short -> hello\n"), "{links}");
    let recursive = stetfs(&["ls", "-R", &image]).ok();
    assert!(
        recursive.contains(&format!("{}:\ndeep\nlarge\n", lab.place("/docs"))),
        "{recursive}"
    );
}

#[test]
fn ls_agrees_with_debugfs_in_json() {
    let (_lab, image) = filled();
    let list = json(&stetfs(&["ls", "-R", "-a", "--json", &image]).ok());
    let list = list.as_array().unwrap();
    assert_eq!(list.len(), 8);
    for file in list {
        let stat = debugfs(
            &image,
            &format!("stat \"{}\"", file["path"].as_str().unwrap()),
        );
        assert!(
            stat.contains(&format!("Inode: {} ", file["inode"])),
            "{file}: {stat}"
        );
        let mode = file["mode"].as_str().unwrap().trim_start_matches('0');
        assert!(stat.contains(&format!("Mode:  0{mode} ")), "{file}: {stat}");
        assert!(
            stat.contains(&format!("Size: {}\n", file["size"])),
            "{file}: {stat}"
        );
        assert!(
            stat.contains(&format!("Links: {} ", file["links"])),
            "{file}: {stat}"
        );
    }
}

#[test]
fn cat_prints_files_and_follows_links() {
    let (lab, _) = filled();
    assert_eq!(
        stetfs(&["cat", &lab.place("/hello"), &lab.place("/short")]).ok(),
        "hello, world\n".repeat(2)
    );
    assert_eq!(
        stetfs(&["cat", &lab.place("/docs/large")]).ok(),
        "L".repeat(300_000)
    );
    stetfs(&["cat", &lab.place("/docs")]).fails(1, &[&lab.place("/docs"), "is a directory"]);
    stetfs(&["cat", &lab.place("/none")]).fails(1, &[&lab.place("/none"), "no such file"]);
    stetfs(&["cat", "/etc/passwd"]).fails(2, &["not a place in an image"]);
    // An existing file is printed although another one is missing.
    let both = stetfs(&["cat", &lab.place("/none"), &lab.place("/hello")]);
    assert_eq!((both.code, both.out.as_str()), (1, "hello, world\n"));
}

#[test]
fn a_reader_that_goes_away_ends_it_quietly() {
    let (lab, _) = filled();
    let line = format!(
        "'{}' cat '{}' | head -c 3",
        crate::run::STETFS,
        lab.place("/docs/large")
    );
    let ran = tool("sh", &["-c", &line]);
    assert_eq!((ran.out.as_str(), ran.err.as_str()), ("LLL", ""));
}

#[test]
fn reading_changes_nothing() {
    let (lab, image) = filled();
    let before = crate::run::sha256(&image);
    stetfs(&["ls", "-lR", &image]).ok();
    stetfs(&["cat", &lab.place("/hello")]).ok();
    stetfs(&["info", &image]).ok();
    stetfs(&["journal", &image]).ok();
    assert_eq!(crate::run::sha256(&image), before);
}

#[test]
fn mkdir_makes_directories() {
    let (lab, image) = filled();
    stetfs(&["mkdir", &lab.place("/new"), &lab.place("/new/inner")]).ok();
    stetfs(&["mkdir", "-p", "-m", "1777", &lab.place("/a/b/c")]).ok();
    stetfs(&["mkdir", "-p", &lab.place("/a/b/c")]).ok();
    assert!(debugfs(&image, "stat /new/inner").contains("Type: directory"));
    assert!(debugfs(&image, "stat /a/b/c").contains("Mode:  01777"));
    stetfs(&["mkdir", &lab.place("/new")]).fails(1, &[&lab.place("/new"), "exists"]);
    stetfs(&["mkdir", &lab.place("/x/y")]).fails(1, &[&lab.place("/x/y"), "no such file"]);
    stetfs(&["mkdir", "-p", &lab.place("/hello/y")]).fails(1, &[&lab.place("/hello"), "is a file"]);
    assert_clean(&image);
}

#[test]
fn rm_removes_files_and_trees() {
    let (lab, image) = filled();
    stetfs(&["rm", &lab.place("/docs")]).fails(1, &["is a directory", "rm -r"]);
    stetfs(&["rm", &lab.place("/none")]).fails(1, &["no such file"]);
    stetfs(&["rm", "-f", &lab.place("/none")]).ok();
    stetfs(&["rm", "-r", &lab.place("/")]).fails(1, &["cannot be removed"]);
    stetfs(&[
        "rm",
        "-r",
        &lab.place("/docs"),
        &lab.place("/short"),
        &lab.place("/long"),
    ])
    .ok();
    assert_eq!(stetfs(&["ls", &image]).ok(), "hello\nlost+found\n");
    assert!(!debugfs(&image, "ls -p /").contains("/docs/"));
    assert_clean(&image);
}

#[test]
fn an_image_in_use_is_refused() {
    let (lab, image) = filled();
    let holder = fs::File::open(&image).unwrap();
    holder.try_lock().unwrap();
    stetfs(&["rm", &lab.place("/hello")]).fails(1, &[&image, "in use"]);
    stetfs(&["ls", &image]).fails(1, &[&image, "in use"]);
}

/// A volume whose mounts have a scheme without `data=ordered` could not be written, or even read.
#[test]
fn volumes_with_a_scheme_of_their_own() {
    let lab = Lab::new();
    let file = lab.str("file");
    fs::write(&file, "content").unwrap();
    for scheme in ["jbd2", "stet", "null"] {
        let image = lab.str(&format!("{scheme}.img"));
        stetfs(&["mkfs", &image, "--size", "16M", "--scheme", scheme]).ok();
        stetfs(&["cp", &file, &format!("{image}:/")]).ok();
        assert_eq!(stetfs(&["cat", &format!("{image}:/file")]).ok(), "content");
        assert_clean(&image);
        // It is still the one that mounts take.
        assert_eq!(
            dumpe2fs(&image, "Mount options"),
            format!("scheme={scheme}")
        );
    }
}
