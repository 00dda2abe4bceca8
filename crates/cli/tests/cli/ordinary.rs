//! `stetfs crash -- PROGRAM` for an ordinary user, who mounts by fusermount3; and in a container
//! with /dev/fuse, for root of a user namespace, who may mount and nothing else.
//!
//! Root runs these tests as another user. In a mount namespace of its own, /dev/fuse has the
//! permissions that udev gives it.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use rustix::fs::{Gid, Uid};

use crate::mounted::can_mount;
use crate::run::{Lab, Ran, STETFS, has, json, tool};

const NOBODY: u32 = 65_534;

/// Makes a /dev/fuse that everybody may open, by way of `$1`, an empty directory; then runs the
/// rest of the line.
const DEVICE: &str = "mount --make-rprivate / && mount -t tmpfs none \"$1\" &&
    mknod -m 666 \"$1/fuse\" c 10 229 && mount --bind \"$1/fuse\" /dev/fuse &&
    shift && exec \"$@\"";

/// A program that renames a file without syncing it, and promises the new content.
const PROGRAM: &str = "cd \"$STETFS_DIR\" || exit 9
echo new > tmp; mv tmp config; echo done > \"$STETFS_MARKS\"
STETFS crash mark more
";

const CHECK: &str = "cd \"$STETFS_DIR\" || exit 9
touch written || exit 8
grep -q done \"$STETFS_MARKS_FILE\" || exit 0
test \"$(cat config)\" = new
";

/// An ordinary user with a program, a check, and a directory.
struct User {
    lab: Lab,
}

impl User {
    /// Returns None, with a message, if there can be no such user.
    fn new() -> Option<Self> {
        if !can_mount() || !["setpriv", "unshare"].into_iter().all(has) {
            return None;
        }
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED: only root can be somebody else");
            return None;
        }
        let user = Self { lab: Lab::new() };
        let may = |path: &str, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        may(&user.lab.str(""), 0o755);
        for dir in ["device", "own"] {
            fs::create_dir(user.lab.path(dir)).unwrap();
        }
        let (uid, gid) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
        rustix::fs::chown(user.lab.path("own"), Some(uid), Some(gid)).unwrap();
        // The user may not be able to reach the program under test.
        fs::copy(STETFS, user.lab.path("stetfs")).unwrap();
        may(&user.lab.str("stetfs"), 0o755);
        let program = PROGRAM.replace("STETFS crash", &user.lab.str("stetfs crash"));
        fs::write(user.lab.path("program.sh"), program).unwrap();
        fs::write(user.lab.path("check.sh"), CHECK).unwrap();
        let shell = format!("#!/bin/sh\nls > {}\n", user.lab.str("own/seen"));
        fs::write(user.lab.path("shell"), shell).unwrap();
        may(&user.lab.str("shell"), 0o755);
        let device = user.run(&["test", "-w", "/dev/fuse"]);
        if device.code != 0 {
            eprintln!("SKIPPED: no device for everybody: {device:?}");
            return None;
        }
        Some(user)
    }

    /// Runs a command as the user.
    fn run(&self, command: &[&str]) -> Ran {
        let (device, own) = (self.lab.str("device"), self.lab.str("own"));
        let (tmpdir, shell) = (
            format!("TMPDIR={own}"),
            format!("SHELL={}", self.lab.str("shell")),
        );
        let args = ["-m", "sh", "-c", DEVICE, "sh", &device];
        let user = [
            "setpriv",
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
        ];
        let env = ["env", "-C", &own, &tmpdir, &shell];
        tool("unshare", &[&args[..], &user, &env, command].concat())
    }

    /// Explores a program, replays a finding and looks at it. The words `before` come before these
    /// commands.
    fn explores(&self, before: &[&str]) {
        let stetfs = self.lab.str("stetfs");
        let check = format!("sh {}", self.lab.str("check.sh"));
        let program = self.lab.str("program.sh");
        let models = ["posix", "ext4-ordered", "stet", "jftl", "ubj"];
        let args = ["crash", "-j", "2", "--keep", "kept", "--json", "report"];
        let models_arg = models.join(",");
        let what = ["--check", &check, "--model", &models_arg];
        let words = ["--", "sh", &program];
        let ran = self.run(&[before, &[&stetfs], &args, &what, &words].concat());
        assert_eq!(ran.code, 1, "{ran:#?}");
        let report = json(&fs::read_to_string(self.lab.path("own/report")).unwrap());
        assert_eq!(report["marks"], 2, "{report:#}");
        for (at, model) in models.iter().enumerate() {
            let found = &report["models"][at];
            assert_eq!(&found["model"], model);
            let finding = &found["findings"][0];
            assert!(
                finding["output"].as_str().unwrap().contains("config"),
                "{finding:#}"
            );
            let case = format!("kept#{}", finding["case"].as_str().unwrap());
            let replay = ["crash", "--replay", &case, "--shell"];
            let ran = self.run(&[before, &[&stetfs], &replay].concat());
            assert_eq!(ran.code, 1, "{ran:#?}");
            let seen = fs::read_to_string(self.lab.path("own/seen")).unwrap();
            assert!(
                seen.contains("lost+found") && !seen.contains("config"),
                "{seen}"
            );
            fs::remove_file(self.lab.path("own/seen")).unwrap();
        }
        for file in ["kept", "report"] {
            fs::remove_file(self.lab.path("own").join(file)).unwrap();
        }
        let left = fs::read_dir(self.lab.path("own")).unwrap().count();
        assert_eq!(left, 0, "something is left behind");
    }
}

#[test]
fn an_ordinary_user_explores_a_program() {
    let Some(user) = User::new() else { return };
    if has("fusermount3") {
        user.explores(&[]);
    }
}

#[test]
fn a_program_is_explored_in_a_container() {
    let Some(user) = User::new() else { return };
    let namespaces = [
        "unshare",
        "--map-root-user",
        "--mount",
        "--net",
        "--ipc",
        "--pid",
        "--fork",
        "--mount-proc",
    ];
    let possible = user.run(&[&namespaces[..], &["true"]].concat());
    if possible.code != 0 {
        eprintln!("SKIPPED: no user namespaces here: {possible:?}");
        return;
    }
    user.explores(&namespaces);
    // Root of a container without the right to mount.
    let mut bare = namespaces.to_vec();
    bare.extend(["setpriv", "--bounding-set=-sys_admin"]);
    let (stetfs, args) = (
        user.lab.str("stetfs"),
        ["crash", "--check", "true", "--", "true"],
    );
    let ran = user.run(&[&bare[..], &[&stetfs], &args].concat());
    ran.fails(2, &["--device /dev/fuse --cap-add SYS_ADMIN"]);
}
