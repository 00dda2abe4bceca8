//! cp under fakeroot(1), which shows its process files that belong to others, and devices. This is
//! how an ordinary user builds the image of a system.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::run::{Lab, STETFS, assert_clean, debugfs, has, tool};

pub(crate) const NOBODY: [&str; 3] = ["--reuid=65534", "--regid=65534", "--clear-groups"];

/// Makes a tree that only root can make, copies it into the image and out again, and describes the
/// result. Without a copy, it describes the tree itself.
const SCRIPT: &str = r#"
set -e
umask 022
mkdir tree tree/dir
echo text > tree/file; chown 1000:2000 tree/file; chmod 4755 tree/file
echo other > tree/dir/other; chown 7:8 tree/dir/other; chown 5:6 tree/dir; chmod 2750 tree/dir
mknod tree/null c 1 3; chown 3:4 tree/null; mknod tree/disk b 8 17; mkfifo tree/pipe
ln -s file tree/link; ln tree/file tree/second
echo plain > plain
"$STETFS" cp -a tree disk.img:/
"$STETFS" cp plain disk.img:/
"$STETFS" mkdir disk.img:/made
"$STETFS" cp -a disk.img:/tree out
tell() {
    cd "$1"
    stat -c '%n %F %U %u %g %a %t %T %h %s' file second dir/other dir null disk pipe link
}
(tell tree) > told; (tell out) > told-out
diff told told-out
# What fakeroot knew of a file goes with it: its number is used again.
"$STETFS" rm disk.img:/tree/file
"$STETFS" cp -a disk.img:/tree/null out
cat told
"#;

#[test]
fn a_tree_that_fakeroot_shows_goes_in_and_comes_out() {
    if !has("fakeroot") {
        return;
    }
    let lab = Lab::new();
    let own = lab.path("own");
    fs::create_dir(&own).unwrap();
    fs::copy(STETFS, lab.path("stetfs")).unwrap();
    let image = lab.str("own/disk.img");
    tool(
        "mke2fs",
        &["-q", "-F", "-t", "ext4", "-b", "1024", &image, "16M"],
    )
    .ok();
    for (path, mode) in [
        ("", 0o755),
        ("stetfs", 0o755),
        ("own", 0o777),
        ("own/disk.img", 0o666),
    ] {
        fs::set_permissions(lab.path(path), fs::Permissions::from_mode(mode)).unwrap();
    }
    let program = format!(
        "export STETFS={}; cd {}; {SCRIPT}",
        lab.str("stetfs"),
        lab.str("own")
    );
    let mut command = Vec::new();
    // Run as an ordinary user: for root much of this is real.
    if rustix::process::geteuid().is_root() && has("setpriv") {
        command.push("setpriv");
        command.extend(NOBODY);
        command.push("--");
    }
    command.extend(["fakeroot", "bash", "-c", &program]);
    let told = tool(command[0], &command[1..]).ok();
    assert!(told.contains("null character special file"), "{told}");
    for (path, words) in [
        (
            "/tree/second",
            &["User:  1000", "Group:  2000", "Mode:  04755"][..],
        ),
        (
            "/tree/null",
            &[
                "Type: character",
                "Device major/minor number: 01:03",
                "User:     3",
            ],
        ),
        (
            "/tree/disk",
            &["Type: block", "Device major/minor number: 08:17"],
        ),
        (
            "/tree/dir",
            &["User:     5", "Group:     6", "Mode:  02750"],
        ),
        ("/tree/dir/other", &["User:     7", "Group:     8"]),
        ("/plain", &["User:     0", "Group:     0"]),
        ("/made", &["User:     0", "Group:     0"]),
    ] {
        let stat = debugfs(&image, &format!("stat {path}"));
        for word in words {
            assert!(stat.contains(word), "{path}: no {word} in {stat}");
        }
    }
    assert_clean(&image);
}
