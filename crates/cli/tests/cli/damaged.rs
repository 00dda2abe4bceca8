//! Every command that takes an image, on damaged images. Each must end by itself, in little memory,
//! with a message, and write only what it was told to write.
//!
//! A number makes an image, the same one everywhere; a failure names the number and keeps the
//! image. `STETFS_DAMAGE_FROM=N` begins with number N, `STETFS_DAMAGE_SECONDS=N` goes on for that
//! long (`make fuzz`).

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use stetfs_crash::damage;
use stetfs_media::Image;
use stetfs_testkit::rng::Rng;

use crate::run::{Lab, STETFS, stetfs};

/// Number of images in one run of the tests.
const IMAGES: u64 = 24;

/// Limits of a process: seconds of the processor, KiB of addresses, and of each file. A longer
/// write is an error, as on a full disk, and does not end the process.
const LIMITS: &str = "ulimit -c 0; ulimit -t 60; ulimit -v 2097152; ulimit -f 65536; trap '' XFSZ; \
    exec \"$0\" \"$@\"";

/// More than any command takes for 4 MiB, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(300);

/// More output than any command makes of 4 MiB.
const WORDS_MAX: u64 = 16 << 20;

/// Most bytes that may be copied out of 4 MiB, in which one file has two names.
const COPY_MAX: u64 = 12 << 20;

/// Returns a number's image, and what was done to it.
fn image(volumes: &[(Image, Vec<u64>)], number: u64) -> Image {
    let (image, targets) = &volumes[number as usize % volumes.len()];
    let mut image = image.clone();
    let mut rng = Rng::new(number);
    let mut hits = Vec::new();
    for _ in 0..1 + rng.below(12) {
        let place = rng.next_u64().to_le_bytes();
        // Superblock, descriptors and the first tables take a third.
        let block = if rng.chance(33) { 0 } else { place[0] };
        let value = *rng.pick(&[0, 1, 2, 0x7f, 0x80, 0xff, b'/', place[3]]);
        hits.extend([block, place[1], place[2], value]);
    }
    damage::apply(&mut image, targets, &hits);
    image
}

fn volumes() -> Vec<(Image, Vec<u64>)> {
    let lab = Lab::new();
    let clean = damage::volumes(&lab.path("")).expect("volumes (needs mke2fs)");
    let unclean = damage::unclean_volumes(&lab.path("")).expect("volumes (needs mke2fs)");
    let with_targets = |(_, image)| {
        let targets = damage::used_blocks(&image);
        (image, targets)
    };
    clean.into_iter().chain(unclean).map(with_targets).collect()
}

/// Collects everything in a directory; returns how much it takes on the disk.
fn content(dir: &Path, all: &mut BTreeSet<PathBuf>) -> u64 {
    let mut bytes = 0;
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let meta = path.symlink_metadata().unwrap();
        bytes += meta.blocks() * 512;
        if meta.is_dir() {
            bytes += content(&path, all);
        }
        all.insert(path);
    }
    bytes
}

/// Runs `stetfs ARGS` under the limits; fails with `what` if it breaks a rule.
fn run(lab: &Lab, args: &[&str], what: &dyn Fn() -> String) {
    let (out, err) = (lab.path("words/out"), lab.path("words/err"));
    let mut child = Command::new("bash")
        .args(["-c", LIMITS, STETFS])
        .args(args)
        .env(
            "PATH",
            "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        )
        .current_dir(lab.path("here"))
        .stdin(Stdio::null())
        .stdout(File::create(&out).unwrap())
        .stderr(File::create(&err).unwrap())
        .spawn()
        .unwrap();
    let begin = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if begin.elapsed() > PATIENCE {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("stetfs {args:?} did not end: {}", what());
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    let words = fs::read(&err).unwrap();
    let words = String::from_utf8_lossy(&words[..words.len().min(4096)]);
    let sound = status.code().is_some_and(|code| code < 64) && !words.contains("panicked");
    assert!(sound, "stetfs {args:?}: {status}: {}\n{words}", what());
    for file in [out, err] {
        let len = file.metadata().unwrap().len();
        assert!(
            len < WORDS_MAX,
            "stetfs {args:?}: {len} bytes of words: {}",
            what()
        );
    }
}

/// Runs every command that takes an image, each on `image` as it was, and judges the commands
/// together with what they leave.
fn try_all(lab: &Lab, image: &Image, commands: &[&[&str]], number: u64) {
    let (file, here, out) = (
        lab.path("here/disk.img"),
        lab.path("here"),
        lab.path("here/out"),
    );
    let path = file.to_str().unwrap();
    let what = || {
        let kept = std::env::temp_dir().join(format!("stetfs-damaged-{number}.img"));
        image.to_file(&kept).unwrap();
        format!("image {number}, kept as {}", kept.display())
    };
    for command in commands {
        image.to_file(&file).unwrap();
        fs::create_dir(&out).unwrap();
        let args: Vec<String> = command
            .iter()
            .map(|arg| arg.replace("IMAGE", path))
            .collect();
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        run(lab, &args, &what);
        let mut copied = BTreeSet::new();
        let bytes = content(&out, &mut copied);
        assert!(
            bytes <= COPY_MAX,
            "stetfs {args:?} wrote {bytes} bytes: {}",
            what()
        );
        fs::remove_dir_all(&out).unwrap();
        let mut left = BTreeSet::new();
        content(&here.join(".."), &mut left);
        let expected = [
            "here",
            "here/disk.img",
            "here/file",
            "words",
            "words/out",
            "words/err",
        ];
        assert_eq!(
            left,
            expected
                .iter()
                .map(|name| here.join("..").join(name))
                .collect(),
            "stetfs {args:?} left something: {}",
            what()
        );
        // If we leave e2fsck a journal that we refuse, e2fsck replays blocks beyond the end of the
        // volume.
        let is_e2fscks = args.contains(&"-y");
        let grown = file.metadata().unwrap().len() > image.size();
        assert!(
            !grown || is_e2fscks,
            "stetfs {args:?} made it longer: {}",
            what()
        );
    }
}

fn place() -> Lab {
    let lab = Lab::new();
    fs::create_dir(lab.path("here")).unwrap();
    fs::create_dir(lab.path("words")).unwrap();
    fs::write(lab.path("here/file"), [7; 10_000]).unwrap();
    lab
}

#[test]
fn commands_on_damaged_volumes() {
    let commands: &[&[&str]] = &[
        &["info", "IMAGE"],
        &["info", "--json", "IMAGE"],
        &["journal", "--all", "IMAGE"],
        &["ls", "-laR", "IMAGE"],
        &["cat", "IMAGE:/file", "IMAGE:/slow", "IMAGE:/hard"],
        &["cp", "-a", "IMAGE:/", "out"],
        &["cp", "-r", "IMAGE:/directory", "file", "IMAGE:/lost+found"],
        &["rm", "-r", "IMAGE:/directory", "IMAGE:/file", "IMAGE:/fifo"],
        &["mkdir", "-p", "IMAGE:/a/b/c", "IMAGE:/directory/d"],
        &["fsck", "-n", "IMAGE"],
        &["fsck", "-y", "IMAGE"],
        &["drain", "IMAGE"],
        &["nand", "check", "IMAGE"],
    ];
    let volumes = volumes();
    let lab = place();
    each_number(|number| try_all(&lab, &image(&volumes, number), commands, number));
}

#[test]
fn commands_on_damaged_parts() {
    let commands: &[&[&str]] = &[
        &["nand", "info", "IMAGE"],
        &["nand", "check", "IMAGE"],
        &["nand", "wear", "IMAGE"],
        &["info", "IMAGE"],
        &["ls", "-laR", "IMAGE"],
        &["cp", "-a", "file", "IMAGE:/"],
        &["fsck", "-n", "IMAGE"],
    ];
    let lab = place();
    let part = lab.str("here/disk.img");
    stetfs(&["nand", "create", &part, "--size", "4M"]).ok();
    stetfs(&["mkfs", &part, "-b", "1K"]).ok();
    stetfs(&["cp", &lab.str("here/file"), &format!("{part}:/")]).ok();
    let volume = Image::from_file(Path::new(&part)).unwrap();
    let targets = damage::used_blocks(&volume);
    let volumes = [(volume, targets)];
    each_number(|number| {
        if number % 4 == 0 {
            try_all(&lab, &image(&volumes, number), commands, number);
        }
    });
}

/// Calls `each` with a fixed set of numbers, or with as many as there is time for.
fn each_number(mut each: impl FnMut(u64)) {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let from = number("STETFS_DAMAGE_FROM").unwrap_or(0);
    let Some(seconds) = number("STETFS_DAMAGE_SECONDS") else {
        return (from..from + IMAGES).for_each(each);
    };
    let begin = Instant::now();
    let mut at = from;
    while begin.elapsed() < Duration::from_secs(seconds) {
        each(at);
        at += 1;
    }
    println!("images {from} to {at}");
}
