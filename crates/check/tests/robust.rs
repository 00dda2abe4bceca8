//! Whatever a volume holds and a device answers, a check ends with findings: no panic, no endless
//! loop, no memory proportional to a number in the volume.

#[path = "../../format/tests/image/mod.rs"]
mod image;

use std::cell::Cell;
use std::io::{self, ErrorKind};
use std::sync::LazyLock;

use image::Image;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use stetfs_check::{Checker, Fault, FnSource};

/// Kinds with checksums, and without them, so that damage gets past.
const KINDS: [(&str, &[&str]); 4] = [
    (
        "bare",
        &[
            "-t",
            "ext4",
            "-b",
            "1024",
            "-O",
            "^metadata_csum,^64bit,^resize_inode",
        ],
    ),
    ("ext3", &["-t", "ext3", "-b", "1024"]),
    (
        "groups",
        &[
            "-t",
            "ext4",
            "-b",
            "1024",
            "-g",
            "512",
            "-O",
            "^metadata_csum",
        ],
    ),
    ("checksums", &["-t", "ext4", "-b", "1024"]),
];

static VOLUMES: LazyLock<Vec<(&str, Vec<u8>)>> = LazyLock::new(|| {
    let make = |&(name, args): &(&'static str, _)| {
        let image = Image::make(args, 8 << 10)?;
        image.populate();
        let bytes = std::fs::read(&image.path).expect("the image");
        Some((name, bytes))
    };
    KINDS.iter().filter_map(make).collect()
});

/// Returns the next number of SplitMix64.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Limits the process to 256 MiB more than it has now; a larger allocation ends it.
fn limit_memory() {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("/proc");
    let pages: u64 = statm
        .split(' ')
        .next()
        .expect("a field")
        .parse()
        .expect("a number");
    let limit = Rlimit {
        current: Some(pages * 4096 + (256 << 20)),
        maximum: getrlimit(Resource::As).maximum,
    };
    setrlimit(Resource::As, limit).expect("a lower limit");
}

#[test]
fn random_damage_ends_in_findings_and_leaves_nothing_behind() {
    let volumes = &*VOLUMES;
    limit_memory();
    let mut reused = Checker::keeping(1000);
    for (name, clean) in volumes {
        let blocks = clean.chunks_exact(1024);
        let used: Vec<usize> = (0..)
            .zip(blocks)
            .filter(|(_, block)| block.iter().any(|&byte| byte != 0))
            .map(|(at, _)| at * 1024)
            .collect();
        let expected = reused.check(clean.as_slice());
        assert!(expected.is_clean(), "{name}: {expected}");
        let mut bytes = clean.clone();
        for seed in 0..500 {
            let state = &mut (seed << 8);
            let mut places = Vec::new();
            for _ in 0..1 << (next(state) % 10) {
                // Half of the damage falls on the first blocks, which hold the important
                // structures.
                let among = if next(state) & 1 == 0 {
                    used.len()
                } else {
                    used.len().min(64)
                };
                let block = used[next(state) as usize % among];
                let size = 1 << (next(state) % 3);
                let place = block + next(state) as usize % (1024 / size) * size;
                let value = match next(state) % 4 {
                    0 => 0,
                    1 => u64::MAX,
                    2 => next(state),
                    _ => used[next(state) as usize % used.len()] as u64 / 1024,
                };
                bytes[place..place + size].copy_from_slice(&value.to_le_bytes()[..size]);
                places.push(place);
            }
            let report = reused.check(bytes.as_slice());
            if seed % 16 == 0 {
                let fresh = Checker::keeping(1000).check(bytes.as_slice());
                assert_eq!(report, fresh, "{name}, seed {seed}: buffers");
                assert!(!report.to_string().is_empty());
            }
            for place in places {
                bytes[place..place + 4].copy_from_slice(&clean[place..place + 4]);
            }
        }
        assert_eq!(reused.check(clean.as_slice()), expected, "{name}: buffers");
    }
}

#[test]
fn a_read_that_fails_is_a_finding_whichever_it_is() {
    let mut checker = Checker::new();
    for (name, bytes) in &*VOLUMES {
        let reads = Cell::new(0);
        let bad = Cell::new(usize::MAX);
        let source = FnSource::new(bytes.len() as u64, |offset, out: &mut [u8]| {
            if reads.replace(reads.get() + 1) == bad.get() {
                return Err(io::Error::from(ErrorKind::TimedOut));
            }
            out.copy_from_slice(&bytes[offset as usize..][..out.len()]);
            Ok(())
        });
        assert!(checker.check(&source).is_clean(), "{name}");
        for at in 0..reads.replace(0) {
            bad.set(at);
            let report = checker.check(&source);
            let is_told = report
                .findings
                .iter()
                .any(|finding| finding.fault == Fault::Unreadable(ErrorKind::TimedOut));
            assert!(is_told, "{name}, read {at}: {report}");
            reads.set(0);
        }
    }
}

#[test]
fn a_volume_that_is_cut_off_is_a_finding_wherever() {
    let mut checker = Checker::new();
    for (name, bytes) in &*VOLUMES {
        for size in (0..bytes.len()).step_by(30_000) {
            let report = checker.check(&bytes[..size]);
            assert!(!report.is_clean(), "{name}, {size} bytes");
        }
    }
}

#[test]
fn findings_beyond_the_limit_are_counted() {
    for (name, bytes) in &*VOLUMES {
        let mut bytes = bytes.clone();
        // The entries of the root directory.
        let root = bytes
            .windows(16)
            .position(|at| at == b"\x02\0\0\0\x0c\0\x01\x02.\0\0\0\x02\0\0\0")
            .expect("the root directory");
        bytes[root..root + 1024].fill(0);
        let all = Checker::keeping(usize::MAX).check(bytes.as_slice());
        assert_eq!(all.findings.len() as u64, all.found, "{name}");
        assert!(all.found > 1, "{name}: {all}");
        let one = Checker::keeping(1).check(bytes.as_slice());
        assert_eq!(one.findings[..], all.findings[..1], "{name}");
        assert_eq!(one.found, all.found, "{name}");
        let last = one.to_string();
        assert!(
            last.contains(&format!("and {} more", all.found - 1)),
            "{last}"
        );
    }
}
