//! `stetfs freeze`: the image of a volume that programs write to, copied. Skipped with a message if
//! there is no FUSE.

use std::fs::{self, File};
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::mounted::{Mount, can_mount};
use crate::run::{STETFS, assert_clean, stetfs, tool, wait_until};

/// Calls it when it goes out of scope, also by a panic, so that no thread goes on for ever.
struct OnDrop<F: Fn()>(F);

impl<F: Fn()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// Programs write and sync all the time. A copy has all that was synced before, and the volume
/// nothing less for it.
#[test]
fn a_copy_has_everything_that_was_synced() {
    if !can_mount() {
        return;
    }
    for options in ["scheme=jbd2", "scheme=stet,noloop"] {
        let m = Mount::new();
        m.up(&["-q", "-o", options]);
        let (is_over, synced) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for n in 1_u64.. {
                    let mut file = File::create(m.file(&format!("f{}", n % 50))).unwrap();
                    writeln!(file, "{n}").unwrap();
                    file.sync_all().unwrap();
                    synced.store(n, Ordering::SeqCst);
                    if is_over.load(Ordering::SeqCst) {
                        return;
                    }
                }
            });
            let _over = OnDrop(|| is_over.store(true, Ordering::SeqCst));
            for _ in 0..3 {
                let before = synced.load(Ordering::SeqCst);
                let copy = m.lab.str("copy.img");
                // It is the same all the time.
                let script =
                    "sha256sum \"$1\" && cp --sparse=always \"$1\" \"$2\" && sha256sum \"$1\"";
                let said = stetfs(&[
                    "freeze", &m.dir, "--", "sh", "-c", script, "sh", &m.image, &copy,
                ]);
                let said = said.ok();
                let sums: Vec<&str> = said.lines().collect();
                assert!(sums.len() == 2 && sums[0] == sums[1], "{said}");
                stetfs(&["recover", &copy]).ok();
                assert_clean(&copy);
                let newest = (0..50).filter_map(|n| {
                    let place = format!("{copy}:/f{n}");
                    let ran = stetfs(&["cat", &place]);
                    ran.out.trim().parse::<u64>().ok()
                });
                let newest = newest.max().unwrap_or(0);
                assert!(newest >= before, "{newest} is older than {before}");
            }
        });
        m.down();
    }
}

/// A command that takes too long, that waits for itself, that fails, that is killed.
#[test]
fn it_never_lasts() {
    if !can_mount() {
        return;
    }
    let m = Mount::new();
    let frozen = |args: &[&str]| stetfs(&[&["freeze"], args].concat());
    frozen(&[&m.dir, "--", "true"]).fails(125, &["not frozen"]);
    m.up(&["-q"]);
    fs::write(m.file("file"), "text").unwrap();
    let works = || assert_eq!(fs::read_to_string(m.file("file")).unwrap(), "text");
    let limited = ["--timeout", "1", &m.dir, "--", "cat", &m.file("file")];
    frozen(&limited).fails(125, &["after 1 s", "must not use the mount"]);
    works();
    assert_eq!(frozen(&[&m.dir, "--", "sh", "-c", "exit 7"]).code, 7);
    assert_eq!(
        frozen(&[&m.dir, "--", "sh", "-c", "kill -9 $$"]).code,
        128 + 9
    );
    frozen(&[&m.dir, "--", "/none"]).fails(127, &["/none"]);
    works();
    let mut killed = Command::new(STETFS)
        .args(["freeze", &m.dir, "--", "sleep", "100"])
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    // It is frozen once the command runs.
    let parent = killed.id().to_string();
    let mut sleep = String::new();
    wait_until("the command runs", || {
        sleep = tool("pgrep", &["-P", &parent, "-x", "sleep"]).out;
        !sleep.is_empty()
    });
    killed.kill().unwrap();
    killed.wait().unwrap();
    works();
    tool("kill", &[sleep.trim()]).ok();
    m.down();
}
