//! Files that are open without a name: they live on, and the next mount after a crash frees them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Condvar, Mutex};

use stetfs::{Caller, Fs, OpenFlags, Schedule, Scheduled, SetAttr};
use stetfs_format::InodeNo;

use crate::image::{Random, Volume};

const ROOT: InodeNo = InodeNo(2);

/// Makes a file of `bytes` bytes that stays open.
fn file(fs: &Fs, name: &str, bytes: usize) -> InodeNo {
    let c = Caller::root();
    let entry = fs
        .create(&c, ROOT, name.as_bytes(), 0o644, OpenFlags::WRITE)
        .unwrap();
    fs.write(&c, entry.ino, 0, &vec![7; bytes]).unwrap();
    entry.ino
}

/// Makes a file of 100 MiB that stays open.
fn large_file(fs: &Fs) -> InodeNo {
    let ino = file(fs, "large", 0);
    let chunk = vec![9; 1 << 20];
    for i in 0..100u64 {
        fs.write(&Caller::root(), ino, i << 20, &chunk).unwrap();
    }
    ino
}

fn cut(fs: &Fs, ino: InodeNo, size: u64) {
    let set = SetAttr {
        size: Some(size),
        ..SetAttr::default()
    };
    fs.setattr(&Caller::root(), ino, &set).unwrap();
}

fn free(fs: &Fs) -> (u64, u64) {
    let s = fs.statfs().unwrap();
    (s.blocks_free, s.files_free)
}

#[test]
fn an_open_file_outlives_its_name() {
    let v = Volume::make("-t ext4 -b 1024", 32);
    let c = Caller::root();
    v.fs.sync().unwrap();
    let before = free(&v.fs);
    let ino = file(&v.fs, "f", 5000);
    v.fs.unlink(&c, ROOT, b"f").unwrap();
    let mut out = [0; 10];
    assert_eq!(v.fs.read(ino, 4995, &mut out).unwrap(), 5);
    assert_eq!(v.fs.getattr(ino).unwrap().nlink, 0);
    assert!(free(&v.fs).1 < before.1);
    v.fs.release(ino).unwrap();
    v.fs.sync().unwrap();
    assert_eq!(free(&v.fs), before);
    assert!(v.fs.getattr(ino).is_err());
    v.check();
}

/// Orphans leave the list in any order. Those that a crash leaves are gone after the next mount.
fn crash_with_orphans(mke2fs: &str, seed: u64) {
    let v = Volume::make(mke2fs, 64);
    let c = Caller::root();
    v.fs.sync().unwrap();
    let before = free(&v.fs);
    let mut random = Random::new(seed);
    let mut open: Vec<InodeNo> = (0..60)
        .map(|i| {
            let name = format!("f{i}");
            let ino = file(&v.fs, &name, random.below(40_000));
            v.fs.unlink(&c, ROOT, name.as_bytes()).unwrap();
            if i % 7 == 0 {
                v.fs.sync().unwrap();
            }
            ino
        })
        .collect();
    for _ in 0..25 {
        let ino = open.swap_remove(random.below(open.len()));
        v.fs.release(ino).unwrap();
    }
    v.fs.sync().unwrap();
    let v = v.crash();
    assert_eq!(v.report.orphans_deleted, 35);
    assert_eq!(free(&v.fs), before);
    v.check();
}

#[test]
fn orphans_are_freed_after_a_crash() {
    crash_with_orphans("-t ext4 -b 1024 -O metadata_csum", 1);
    crash_with_orphans("-t ext3 -b 1024", 2);
    crash_with_orphans("-t ext4 -b 1024 -O metadata_csum,orphan_file", 3);
}

/// A large file is freed or truncated over several transactions.
#[test]
fn a_large_file_is_freed_in_steps() {
    let v = Volume::make("-t ext3 -b 1024 -J size=4", 160);
    let c = Caller::root();
    v.fs.sync().unwrap();
    let before = free(&v.fs);
    let ino = large_file(&v.fs);
    v.fs.sync().unwrap();
    cut(&v.fs, ino, 50 << 20);
    v.fs.release(ino).unwrap();
    v.fs.unlink(&c, ROOT, b"large").unwrap();
    v.fs.sync().unwrap();
    assert_eq!(free(&v.fs), before);
    v.check();
}

/// A file without a name stays an orphan when it was truncated over several transactions.
#[test]
fn what_is_cut_without_a_name_is_freed_after_a_crash() {
    let v = Volume::make("-t ext3 -b 1024 -J size=4", 160);
    let c = Caller::root();
    v.fs.sync().unwrap();
    let before = free(&v.fs);
    let ino = large_file(&v.fs);
    v.fs.unlink(&c, ROOT, b"large").unwrap();
    v.fs.sync().unwrap();
    cut(&v.fs, ino, 1 << 20);
    v.fs.sync().unwrap();
    let v = v.crash();
    assert_eq!(v.report.orphans_deleted, 1);
    assert_eq!(free(&v.fs), before);
    v.check();
}

/// How far the other thread has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Other {
    Waits,
    Runs,
    /// It cannot go on before this thread does.
    IsStuck,
    IsDone,
}

/// Lets another thread do all that it can at one step of this one.
#[derive(Debug)]
struct AtStep {
    step: usize,
    passed: AtomicUsize,
    other: Mutex<Other>,
    changed: Condvar,
}

impl AtStep {
    fn say(&self, other: Other) {
        *self.other.lock().unwrap() = other;
        self.changed.notify_all();
    }

    fn wait_until(&self, is_so: impl Fn(Other) -> bool) {
        let other = self.other.lock().unwrap();
        drop(
            self.changed
                .wait_while(other, |other| !is_so(*other))
                .unwrap(),
        );
    }
}

#[derive(Debug)]
enum Thread {
    This(Arc<AtStep>),
    Other(Arc<AtStep>),
}

impl Schedule for Thread {
    fn commits_first(&self) -> bool {
        false
    }

    fn splits(&self) -> bool {
        false
    }

    fn pass(&self) {
        if let Self::This(at) = self
            && at.passed.fetch_add(1, Ordering::Relaxed) == at.step
        {
            at.say(Other::Runs);
            at.wait_until(|other| other != Other::Runs);
        }
    }

    fn wait(&self) {
        if let Self::Other(at) = self {
            at.say(Other::IsStuck);
        }
        std::thread::yield_now();
    }
}

/// Closes `this`, and all of `other` at one step of that. Returns false if it has no such step.
fn close_both(fs: &Fs, this: InodeNo, other: InodeNo, step: usize) -> bool {
    let at = Arc::new(AtStep {
        step,
        passed: AtomicUsize::new(0),
        other: Mutex::new(Other::Waits),
        changed: Condvar::new(),
    });
    let begins = Barrier::new(2);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _scheduled = Scheduled::by(Arc::new(Thread::Other(at.clone())));
            begins.wait();
            at.wait_until(|other| other == Other::Runs);
            fs.release(other).unwrap();
            at.say(Other::IsDone);
        });
        begins.wait();
        let scheduled = Scheduled::by(Arc::new(Thread::This(at.clone())));
        let closed = fs.release(this);
        assert!(closed.is_ok(), "step {step}: {closed:?}");
        drop(scheduled);
        let has_step = at.passed.load(Ordering::Relaxed) > step;
        if !has_step {
            at.say(Other::Runs);
        }
        has_step
    })
}

#[test]
fn two_orphans_are_freed_at_any_step_of_each_other() {
    for is_older in [true, false] {
        let v = Volume::make("-t ext4 -b 1024", 32);
        let mut steps = 0..;
        let mut has_step = true;
        while has_step {
            let [older, newer] = ["older", "newer"].map(|name| {
                let ino = file(&v.fs, name, 3000);
                v.fs.unlink(&Caller::root(), ROOT, name.as_bytes()).unwrap();
                ino
            });
            let (this, other) = if is_older {
                (older, newer)
            } else {
                (newer, older)
            };
            let step = steps.next().unwrap();
            has_step = close_both(&v.fs, this, other, step);
        }
        assert!(steps.start > 10, "{} steps", steps.start);
        v.check();
    }
}
