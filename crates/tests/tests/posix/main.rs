//! A table of the answers that calls must give, as pjdfstest has: errors, permissions, times,
//! links.
//!
//! Every case runs in an empty directory of its own. The table also runs on the kernel's ext4,
//! which checks the table. The cases are in `errors.rs`, `permissions.rs`, `times.rs` and
//! `links.rs`.
#![forbid(unsafe_code)]

mod errors;
mod links;
mod permissions;
mod times;

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Gid, Mode, OFlags, Timespec, Uid};
use rustix::io::Errno;
use stetfs_testkit::host::{KernelMount, needs, scratch};
use stetfs_testkit::image::{EXT4_4K, check};
use stetfs_testkit::mounted::Mounted;
use stetfs_testkit::skip_unless;

/// The directory of one case.
pub(crate) struct Dir(PathBuf);

/// Runs a case; returns the answer of the call that it is about. A failure of any other call
/// panics.
pub(crate) type Run = fn(&Dir) -> Result<(), Errno>;

/// A line of the table.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) expected: Result<(), Errno>,
    pub(crate) run: Run,
}

/// A case that must be refused with this error.
pub(crate) const fn refused(name: &'static str, errno: Errno, run: Run) -> Case {
    Case {
        name,
        expected: Err(errno),
        run,
    }
}

/// A case that must succeed.
pub(crate) const fn works(name: &'static str, run: Run) -> Case {
    Case {
        name,
        expected: Ok(()),
        run,
    }
}

/// The three times that every file has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamps {
    pub(crate) atime: (i64, i64),
    pub(crate) mtime: (i64, i64),
    pub(crate) ctime: (i64, i64),
}

impl Dir {
    /// Returns the path of a name in the directory.
    pub(crate) fn at(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Makes a file with some bytes.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        let path = self.at(name);
        fs::write(&path, b"content").expect("a file can be written");
        path
    }

    /// Makes a directory.
    pub(crate) fn dir(&self, name: &str) -> PathBuf {
        let path = self.at(name);
        fs::create_dir(&path).expect("a directory can be made");
        path
    }

    /// Makes a symbolic link.
    pub(crate) fn link(&self, target: &str, name: &str) -> PathBuf {
        let path = self.at(name);
        rustix::fs::symlink(target, &path).expect("a link can be made");
        path
    }

    /// Gives a file to another owner.
    pub(crate) fn give(&self, name: &str, uid: u32, gid: u32, mode: u32) {
        let path = self.at(name);
        let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
        rustix::fs::chownat(CWD, &path, uid, gid, AtFlags::SYMLINK_NOFOLLOW)
            .expect("root may chown");
        rustix::fs::chmod(&path, Mode::from_raw_mode(mode)).expect("root may chmod");
    }

    /// Returns the mode, with its type bits.
    pub(crate) fn mode(&self, name: &str) -> u32 {
        rustix::fs::lstat(self.at(name)).expect("stat").st_mode
    }

    /// Returns the link count.
    pub(crate) fn links(&self, name: &str) -> u64 {
        rustix::fs::lstat(self.at(name)).expect("stat").st_nlink as u64
    }

    /// Returns the times.
    pub(crate) fn stamps(&self, name: &str) -> Stamps {
        let s = rustix::fs::lstat(self.at(name)).expect("stat");
        Stamps {
            atime: (s.st_atime as i64, s.st_atime_nsec as i64),
            mtime: (s.st_mtime as i64, s.st_mtime_nsec as i64),
            ctime: (s.st_ctime as i64, s.st_ctime_nsec as i64),
        }
    }
}

/// Runs `call` in a thread that is this user, in this group and these other groups.
pub(crate) fn as_user<T: Send>(
    uid: u32,
    gid: u32,
    groups: &[u32],
    call: impl FnOnce() -> T + Send,
) -> T {
    let groups: Vec<Gid> = groups.iter().map(|g| Gid::from_raw(*g)).collect();
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
            rustix::thread::set_thread_groups(&groups).expect("root may set groups");
            rustix::thread::set_thread_res_gid(gid, gid, gid).expect("root may set the group");
            rustix::thread::set_thread_res_uid(uid, uid, uid).expect("root may set the user");
            call()
        });
        thread
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Opens and closes a file.
pub(crate) fn open(path: &Path, flags: OFlags) -> Result<(), Errno> {
    rustix::fs::open(path, flags, Mode::from_raw_mode(0o644)).map(drop)
}

/// A time of long ago.
pub(crate) const LONG_AGO: Timespec = Timespec {
    tv_sec: 1_000_000_000,
    tv_nsec: 0,
};

/// Cases that a FUSE mount cannot pass, with the reason. A case that passes unexpectedly is an
/// error too.
const KNOWN: &[(&str, &str)] = &[(
    "write: beyond what any file can have",
    "the kernel's writeback cache takes the write: the protocol has no way to tell it the largest \
        file",
)];

fn run_table(mount: &Path) -> Vec<String> {
    rustix::process::umask(Mode::empty());
    let mut wrong = Vec::new();
    let tables = [
        errors::CASES,
        permissions::CASES,
        times::CASES,
        links::CASES,
    ];
    for (i, case) in tables.into_iter().flatten().enumerate() {
        let dir = Dir(mount.join(format!("case{i}")));
        fs::create_dir(&dir.0).expect("a directory for the case");
        rustix::fs::chmod(&dir.0, Mode::from_raw_mode(0o777)).expect("chmod");
        match catch_unwind(AssertUnwindSafe(|| (case.run)(&dir))) {
            Ok(found) if found == case.expected => {}
            Ok(found) => wrong.push(format!(
                "{}: {found:?}, expected {:?}",
                case.name, case.expected
            )),
            Err(_) => wrong.push(format!("{}: an assertion failed (see above)", case.name)),
        }
    }
    wrong
}

#[test]
fn the_table_holds_for_the_kernel() {
    skip_unless!(needs(true, false, &["mke2fs", "e2fsck"]));
    let scratch = scratch().expect("a scratch directory");
    let (image, dir) = (scratch.path().join("image"), scratch.path().join("mnt"));
    fs::create_dir(&dir).expect("a mount point");
    EXT4_4K.make(&image, 64, 4).expect("a volume");
    let mount = KernelMount::ext4(&image, &dir, "relatime").expect("a mount");
    let wrong = run_table(&dir);
    mount.unmount().expect("unmount");
    assert!(
        wrong.is_empty(),
        "the kernel's ext4 disagrees with the table:\n{}",
        wrong.join("\n")
    );
}

#[test]
fn the_table_holds_for_a_mount() {
    skip_unless!(needs(true, true, &["mke2fs", "e2fsck"]));
    let scratch = scratch().expect("a scratch directory");
    let (image, dir) = (scratch.path().join("image"), scratch.path().join("mnt"));
    fs::create_dir(&dir).expect("a mount point");
    EXT4_4K.make(&image, 64, 4).expect("a volume");
    let mount = Mounted::start(
        env!("CARGO_BIN_EXE_serve"),
        &image,
        &dir,
        "data=journal,allow_other",
    )
    .expect("a mount");
    let mut wrong = run_table(&dir);
    mount.unmount().expect("unmount");
    check(&image).expect("a clean volume");
    for (name, reason) in KNOWN {
        let before = wrong.len();
        wrong.retain(|line| !line.starts_with(name));
        assert_ne!(
            wrong.len(),
            before,
            "\"{name}\" passes now, although {reason}"
        );
    }
    assert!(
        wrong.is_empty(),
        "stetfs disagrees with the table:\n{}",
        wrong.join("\n")
    );
}
