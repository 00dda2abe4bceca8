//! Measures what a check costs, and what e2fsck takes.
//!
//! `check_cost` makes a small volume and a large one and measures both. `check_cost IMAGE...`
//! measures these and prints their findings. Times are the best of several; those of e2fsck include
//! the start of its process.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use stetfs_check::Checker;

/// How often each is measured at least.
const ROUNDS: u32 = 20;
/// How long each is measured at least.
const LONG_ENOUGH: Duration = Duration::from_millis(300);

/// Images with more bytes are not read into memory.
const IN_MEMORY: u64 = 4 << 30;

/// The best time of one round, in microseconds.
fn best_us(mut round: impl FnMut()) -> f64 {
    let start = Instant::now();
    let mut best = Duration::MAX;
    let mut rounds = 0;
    while rounds < ROUNDS || start.elapsed() < LONG_ENOUGH {
        let start = Instant::now();
        round();
        best = best.min(start.elapsed());
        rounds += 1;
    }
    best.as_secs_f64() * 1e6
}

/// Prints what a check of an image costs. Returns whether the image is clean.
fn measure(name: &str, path: &Path) -> bool {
    let file = File::open(path).expect("an image");
    let mut checker = Checker::new();
    let report = checker.check(&file);
    let memory = if file.metadata().is_ok_and(|meta| meta.len() <= IN_MEMORY) {
        let bytes = fs::read(path).expect("an image");
        format!("{:.1}", best_us(|| drop(checker.check(bytes.as_slice()))))
    } else {
        "too many".to_owned()
    };
    let from_file = best_us(|| drop(checker.check(&file)));
    let mut e2fsck = Command::new("e2fsck");
    let e2fsck = e2fsck.arg("-fn").arg(path);
    let e2fsck = e2fsck.stdout(Stdio::null()).stderr(Stdio::null());
    let e2fsck = match e2fsck.status() {
        Ok(_) => format!("{:.0}", best_us(|| drop(e2fsck.status()))),
        Err(error) => error.to_string(),
    };
    println!("{name}: {report}");
    println!("{name}: {memory} us in memory, {from_file:.1} us in the file; e2fsck: {e2fsck} us");
    report.is_clean()
}

/// Makes files of a few blocks, a hundred per directory.
fn plant(root: &Path, files: usize) {
    for i in 0..files {
        let dir = root.join(format!("directory-{}", i / 100));
        if i % 100 == 0 {
            fs::create_dir(&dir).expect("a directory");
        }
        let content = vec![b'x'; i * 37 % 6000];
        fs::write(dir.join(format!("file-{i}")), content).expect("a file");
    }
}

fn make(dir: &Path, name: &str, args: &[&str], size: &str, files: usize) -> bool {
    let tree = dir.join(format!("{name}-tree"));
    fs::create_dir(&tree).expect("a directory");
    plant(&tree, files);
    let image = dir.join(name);
    let mut mke2fs = Command::new("mke2fs");
    mke2fs.args(["-q", "-F", "-t", "ext4"]).args(args);
    mke2fs.arg("-d").arg(tree).arg(&image).arg(size);
    let made = mke2fs.stdout(Stdio::null()).stderr(Stdio::null()).status();
    if !made.is_ok_and(|status| status.success()) {
        println!("SKIPPED: mke2fs does not make {name}");
        return true;
    }
    measure(name, &image)
}

fn main() -> ExitCode {
    let images: Vec<String> = std::env::args().skip(1).collect();
    let mut is_clean = true;
    for image in &images {
        is_clean &= measure(image, Path::new(image));
    }
    if images.is_empty() {
        let dir = tempfile::tempdir().expect("a directory");
        for (name, args, size, files) in [
            ("2 MiB, 50 files", ["-b", "1024"].as_slice(), "2M", 50),
            ("8 MiB, 50 files", &["-b", "4096"], "8M", 50),
            ("1 GiB, 20000 files", &["-b", "4096"], "1G", 20_000),
        ] {
            is_clean &= make(dir.path(), name, args, size, files);
        }
    }
    if is_clean {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
