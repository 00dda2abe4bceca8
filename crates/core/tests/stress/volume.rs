//! Test volumes, made and judged by e2fsprogs.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use stetfs::{Fs, MountOptions};
use stetfs_media::sim::{Keep, SimDev, SimOptions};
use stetfs_media::{BlockDev, Class, Image, Tag};
use tempfile::NamedTempFile;

/// A small generator (splitmix64). Its seed repeats a run, as far as threads allow.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let x = self.0;
        let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ (x >> 31)
    }

    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

fn run(program: &str, args: &[&str], path: &Path) -> Result<(), String> {
    // PATH stays as it is. If the command's environment had its own, std would fork, which copies
    // the page tables of all the test's memory, instead of calling posix_spawn.
    let out = Command::new(program)
        .args(args)
        .arg(path)
        .output()
        .unwrap_or_else(|e| panic!("{program} (e2fsprogs) cannot be run: {e}"));
    if out.status.success() {
        return Ok(());
    }
    Err(String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned())
}

/// Makes an image with mke2fs.
pub(crate) fn image(kind: &str, mib: u64) -> Image {
    let file = NamedTempFile::new().unwrap();
    file.as_file().set_len(mib << 20).unwrap();
    let mut args: Vec<&str> = kind.split_whitespace().collect();
    args.extend(["-F", "-q", "-m", "1"]);
    run("mke2fs", &args, file.path()).unwrap_or_else(|e| panic!("mke2fs {kind}: {e}"));
    Image::from_file(file.path()).unwrap()
}

pub(crate) fn mount(dev: Arc<dyn BlockDev>, options: MountOptions) -> Fs {
    Fs::mount(dev, options).unwrap().0
}

/// Unmounts. Aborts the process when that hangs.
pub(crate) fn unmount(fs: &Fs, what: &str) {
    let (sender, done) = channel();
    let name = what.to_owned();
    let guard = std::thread::spawn(move || {
        if done.recv_timeout(Duration::from_secs(60)) == Err(RecvTimeoutError::Timeout) {
            eprintln!("{name}: the unmount hangs");
            std::process::abort();
        }
    });
    fs.unmount().unwrap_or_else(|e| panic!("{what}: {e}"));
    let _ = sender.send(());
    guard.join().unwrap();
}

/// Cuts the power at `cuts` random moments since `begin`, each with all, none and some of the
/// pending changes kept. `judge` gets the mount after the cut, the moment (in changes of the
/// device) and the name of the case.
pub(crate) fn cut(
    dev: &SimDev,
    (begin, cuts): (u64, u64),
    random: &mut Random,
    options: impl Fn() -> MountOptions,
    judge: impl Fn(&Fs, u64, &str),
) {
    let all = dev.changes() - begin;
    let mut moments: Vec<u64> = (0..cuts).map(|_| begin + random.below(all + 1)).collect();
    moments.sort_unstable();
    let mut points = dev.tape().crash_points();
    for moment in moments {
        let point = points.at_moment(moment);
        for keep in [Keep::All, Keep::None, Keep::Random(random.next())] {
            let left = SimOptions::default().build(point.state(&keep));
            let fs = mount(Arc::new(left), options());
            judge(&fs, moment, &format!("cut after {moment} changes, {keep}"));
        }
    }
}

/// Copies a device's content to a file.
pub(crate) fn copy(dev: &dyn BlockDev, path: &Path) {
    let mut bytes = vec![0; dev.size() as usize];
    dev.read_at(0, &mut bytes, Tag::read(Class::Data)).unwrap();
    std::fs::write(path, bytes).unwrap();
}

/// Panics unless e2fsck accepts the image that `write` puts into a file.
pub(crate) fn clean(what: &str, write: impl FnOnce(&Path)) {
    let file = NamedTempFile::new().unwrap();
    write(file.path());
    if let Err(complaints) = run("e2fsck", &["-fn"], file.path()) {
        let kept = std::env::temp_dir().join("stetfs-stress-image");
        let _ = std::fs::copy(file.path(), &kept);
        panic!(
            "{what}: e2fsck (image kept in {}): {complaints}",
            kept.display()
        );
    }
}
