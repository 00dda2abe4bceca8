//! Many direct writes that no call waits for, to a file that others have in the page cache, while
//! the server has dirty pages written: all of them end. On a full volume they fail with ENOSPC.
//!
//! Before the fix, 64 such writes held all of the kernel's slots for requests in the background.
//! The server answered none until the file's pages were dropped from the page cache; for that a
//! dirty page had to be written, which needed a slot.

mod support;

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use support::Volume;
use support::fio::{end, fio, run};

#[test]
fn all_of_them_end() {
    need!(support::root_and_fuse());
    need!(support::have("fio"));
    for (scheme, transport) in [("jbd2", "dev"), ("stet", "auto")] {
        let volume = Volume::new(64, &["-b", "4096"]);
        let server = volume.mount(&format!("scheme={scheme},transport={transport}"));
        let mut depths = [256, 128, 64, 1, 56].into_iter().cycle();
        for engine in ["libaio", "io_uring", "posixaio", "psync"] {
            for depth in depths.by_ref().take(2) {
                run(&volume, engine, depth, None);
            }
        }
        volume.unmount(server);
    }
}

/// A memory cgroup for one test.
struct Group(PathBuf);

impl Group {
    fn new(bytes: u64) -> Result<Self, String> {
        let unified = Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
        let (parent, limit) = if unified {
            ("/sys/fs/cgroup", "memory.max")
        } else {
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
        };
        let dir = Path::new(parent).join(format!("stetfs-test-{}", std::process::id()));
        let made =
            fs::create_dir(&dir).and_then(|()| fs::write(dir.join(limit), bytes.to_string()));
        made.map_err(|e| format!("a memory cgroup in {parent}: {e}"))?;
        Ok(Self(dir))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn all_of_them_end_where_memory_is_tight() {
    need!(support::root_and_fuse());
    need!(support::have("fio"));
    let group = match Group::new(48 << 20) {
        Ok(group) => group,
        Err(missing) => return eprintln!("SKIPPED {}: {missing}", file!()),
    };
    let volume = Volume::new(64, &["-b", "1024"]);
    let server = volume.mount("memory=8M");
    for (engine, depth) in [("libaio", 256), ("io_uring", 128)] {
        run(&volume, engine, depth, Some(&group.0));
    }
    volume.unmount(server);
}

#[test]
fn a_full_volume_is_called_full() {
    need!(support::root_and_fuse());
    need!(support::have("fio"));
    for depth in [1, 128] {
        let volume = Volume::new(24, &["-b", "1024"]);
        let server = volume.mount("");
        // Another job overwrites this file's blocks all the while.
        let base = support::open(&volume.path("f"));
        base.write_all_at(&[1; 1 << 20], 0).unwrap();
        base.sync_all().unwrap();
        let mut command = fio(&volume, None);
        command.args([
            "--size=64m",
            "--bs=96k",
            "--rw=write",
            "--filename=g",
            "--name=grows",
        ]);
        command.args([
            "--ioengine=libaio",
            "--direct=1",
            &format!("--iodepth={depth}"),
        ]);
        let ended = end(&volume, "grows", command.spawn().unwrap());
        assert_eq!(
            ended["jobs"][0]["error"],
            libc::ENOSPC,
            "depth {depth}: {ended}"
        );
        let free = rustix::fs::statvfs(&volume.dir).unwrap();
        assert!(
            free.f_bavail * free.f_frsize < 1 << 20,
            "depth {depth}: {} blocks",
            free.f_bavail
        );
        run(&volume, "libaio", depth, None);
        drop(base);
        // All that was written is there, and nothing of what was refused.
        let len = fs::metadata(volume.path("g")).unwrap().len();
        assert!(
            len > 8 << 20 && len.is_multiple_of(96 << 10),
            "depth {depth}: {len}"
        );
        volume.unmount(server);
    }
}
