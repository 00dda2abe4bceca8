//! Requests by io_uring and by `/dev/fuse`: both give the same answers, and each is used where it
//! is said to be.

mod support;

use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{SeekFrom, XattrFlags};
use rustix::process::Pid;
use serde_json::Value;
use stetfs_sys::file_ioctl::begin_group;
use support::Volume;

const PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";

/// FUSE over io_uring, switched on for a while, for one test at a time.
struct On {
    before: String,
    _alone: MutexGuard<'static, ()>,
}

static ALONE: Mutex<()> = Mutex::new(());

impl On {
    fn switch() -> Result<Self, String> {
        support::root_and_fuse()?;
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let before = fs::read_to_string(PARAMETER).map_err(|e| format!("{PARAMETER}: {e}"))?;
        fs::write(PARAMETER, "Y").map_err(|e| format!("{PARAMETER}: {e}"))?;
        Ok(Self {
            before,
            _alone: alone,
        })
    }
}

impl Drop for On {
    fn drop(&mut self) {
        let _ = fs::write(PARAMETER, self.before.trim());
    }
}

fn transport(volume: &Volume) -> String {
    let stats = stetfs_fuse::query_stats(&volume.dir).expect("counters");
    let stats: Value = serde_json::from_str(&stats).expect("JSON");
    stats["server"]["transport"]
        .as_str()
        .expect("a word")
        .to_owned()
}

#[test]
fn both_give_the_same() {
    let on = match On::switch() {
        Ok(on) => on,
        Err(missing) => return eprintln!("SKIPPED {}: {missing}", file!()),
    };
    let seen: Vec<Vec<u8>> = ["uring", "dev"]
        .iter()
        .map(|way| {
            // So many wait at once that their few workers are replaced.
            let volume = Volume::new(256, &["-b", "4096"]);
            let server = volume.mount(&format!("transport={way},threads=2"));
            assert_eq!(transport(&volume), *way);
            let seen = work(&volume);
            volume.unmount(server);
            seen
        })
        .collect();
    assert!(seen[0] == seen[1]);
    drop(on);
}

/// Each processor's queue has workers left while others wait. (Before the fix, those that waited in
/// one queue were counted for the others too.)
#[test]
fn who_waits_leaves_a_worker() {
    let on = match On::switch() {
        Ok(on) => on,
        Err(missing) => return eprintln!("SKIPPED {}: {missing}", file!()),
    };
    need!(support::have("fio"));
    let volume = Volume::new(64, &["-b", "4096"]);
    let server = volume.mount("transport=uring,threads=1");
    for depth in [256, 24, 128] {
        support::fio::run(&volume, "libaio", depth, None);
    }
    volume.unmount(server);
    drop(on);
}

/// Does work with long requests, long answers, many of both, and answers from other threads than
/// the workers.
fn work(volume: &Volume) -> Vec<u8> {
    let mut seen = Vec::new();
    let path = |name: &str| volume.path(name);
    let big: Vec<u8> = (0..9_000_001_u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    fs::write(path("big"), &big).expect("written");
    let sparse = File::create(path("sparse")).expect("made");
    sparse.write_all_at(b"end", 3 << 20).expect("written");
    // The file's pages are dirty: they have to be written before the server can say where data is.
    let data = rustix::fs::seek(&sparse, SeekFrom::Data(0)).expect("data");
    seen.extend(data.to_le_bytes());
    let value = vec![7; 3000];
    rustix::fs::setxattr(path("big"), "user.long", &value, XattrFlags::empty()).expect("set");
    let mut out = vec![0; 4000];
    let len = rustix::fs::getxattr(path("big"), "user.long", &mut out).expect("got");
    seen.extend(&out[..len]);
    for i in 0..700 {
        let name = format!("{i:03}-{}", "n".repeat(200));
        fs::write(path(&name), vec![i as u8; i % 9000]).expect("written");
    }
    let mut names: Vec<_> = fs::read_dir(&volume.dir)
        .expect("a directory")
        .map(|entry| entry.expect("an entry").file_name().into_encoded_bytes())
        .collect();
    names.sort();
    seen.extend(names.concat());
    // Direct writes to data that is in the page cache too: another thread drops the pages.
    std::thread::scope(|scope| {
        for worker in 0..8_u64 {
            let big = path("big");
            scope.spawn(move || {
                let cached = OpenOptions::new().read(true).write(true).open(&big);
                let cached = cached.expect("opened");
                let direct = OpenOptions::new()
                    .write(true)
                    .custom_flags(libc::O_DIRECT)
                    .open(&big)
                    .expect("opened");
                let mut memory = vec![0_u8; 3 * 4096];
                let aligned = memory.as_ptr().align_offset(4096);
                for round in 0..30 {
                    let page = &mut memory[aligned..][..4096];
                    page.fill(worker as u8 + round);
                    let at = (worker * 30 + u64::from(round)) * 4096;
                    let mut read = [0; 4096];
                    cached.read_exact_at(&mut read, at).expect("read");
                    cached.write_all_at(&[round], at + 9).expect("written");
                    direct.write_all_at(page, at).expect("written");
                    cached.read_exact_at(&mut read, at).expect("read");
                    assert!(
                        read == *page,
                        "what was written past the page cache is seen"
                    );
                }
                cached.sync_all().expect("durable");
            });
        }
    });
    // Groups that wait until a writer from before the mark has closed the file.
    for name in ["group-1", "group-2", "group-3"].map(path) {
        let writer = File::create(&name).expect("made");
        support::run(std::process::Command::new("chattr").arg("+j").arg(&name));
        let owner = File::options().write(true).open(&name).expect("opened");
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| begin_group(&owner).expect("begun"));
            scope.spawn(move || drop(writer));
            let name = waiting.join().expect("its name");
            assert_eq!(begin_group(&owner), Ok(name), "it goes on");
        });
    }
    File::open(path("big"))
        .expect("opened")
        .read_to_end(&mut seen)
        .expect("read");
    let absent = File::open(path("absent")).expect_err("it is not there");
    seen.extend(
        absent
            .raw_os_error()
            .expect("an error number")
            .to_le_bytes(),
    );
    seen
}

/// Before the fix they waited until somebody killed the server: the kernel ends what it has handed
/// to a thread of the server only with that thread.
#[test]
fn a_stopped_server_is_given_up() {
    let on = match On::switch() {
        Ok(on) => on,
        Err(missing) => return eprintln!("SKIPPED {}: {missing}", file!()),
    };
    let volume = Volume::new(64, &[]);
    let server = volume.mount("transport=uring,abort_hung=4");
    let file = File::create(volume.path("f")).expect("made");
    file.write_all_at(b"confirmed", 0).expect("written");
    file.sync_all().expect("durable");
    let began = Instant::now();
    support::stop(Pid::from_raw(server.pid().cast_signed()).expect("not 0"));
    // An error, or that of the directory below the mount.
    fs::metadata(volume.path("absent")).expect_err("nobody answers");
    assert!(began.elapsed() >= Duration::from_secs(4));
    drop(file);
    let (status, _) = server.wait();
    assert!(!status.success(), "{status}");
    support::wait_for_release(&volume.dir);
    let server = volume.mount("");
    let read = fs::read(volume.path("f")).expect("read");
    assert_eq!(read, b"confirmed");
    volume.unmount(server);
    drop(on);
}

#[test]
fn a_server_that_dies_leaves_nobody_waiting() {
    let on = match On::switch() {
        Ok(on) => on,
        Err(missing) => return eprintln!("SKIPPED {}: {missing}", file!()),
    };
    let volume = Volume::new(64, &[]);
    let server = volume.mount("transport=uring");
    fs::write(volume.path("file"), b"content").expect("written");
    // Callers in the middle of their requests: their calls end, with an error or on the directory
    // below the mount.
    let is_over = AtomicBool::new(false);
    let calls = [const { AtomicU64::new(0) }; 4];
    std::thread::scope(|scope| {
        for (caller, calls) in calls.iter().enumerate() {
            let (path, is_over) = (volume.path(&format!("file{caller}")), &is_over);
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    let _ = fs::write(&path, b"content");
                    calls.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        support::wait_until("each caller has made some calls", || {
            calls.iter().all(|calls| calls.load(Ordering::Relaxed) > 5)
        });
        server.crash(&volume.dir);
        is_over.store(true, Ordering::Relaxed);
    });
    drop(on);
}
