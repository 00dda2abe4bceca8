//! File contents against a plain vector: writes, truncates, holes, preallocation, copies, commits,
//! remounts, on every kind of volume and in every mode. A failure prints its seed.

use crate::testing::{Image, KINDS};
use crate::{Caller, Error, FallocateMode, Fs, OpenFlags, SetAttr, Whence};
use stetfs_format::InodeNo;
use stetfs_scheme::{Ground, Registration};
use stetfs_schemes::SCHEMES;

const RW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);
/// Every file stays below this size, in bytes.
const SIZE_MAX: u64 = 3 << 20;
const STEPS: u32 = 150;

/// The mount options of each trial on a block device.
fn modes() -> Vec<String> {
    let of = |scheme: &'static Registration| {
        let on_device = scheme.trials.iter().filter(|t| t.ground == Ground::Block);
        on_device.map(|trial| trial.mount_options(scheme.about))
    };
    SCHEMES.iter().flat_map(of).collect()
}

struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 11) % n
    }

    /// Returns an offset, often on or near a block boundary.
    fn offset(&mut self) -> u64 {
        let at = self.below(SIZE_MAX);
        match self.below(4) {
            0 => at & !4095,
            1 => (at & !4095).saturating_sub(1),
            _ => at,
        }
    }
}

/// A file, and its expected content.
struct Twin {
    ino: InodeNo,
    model: Vec<u8>,
}

impl Twin {
    fn overwrite(&mut self, at: usize, bytes: &[u8]) {
        if self.model.len() < at + bytes.len() {
            self.model.resize(at + bytes.len(), 0);
        }
        self.model[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn check(&self, fs: &Fs) {
        let mut out = vec![0xee; self.model.len() + 1];
        assert_eq!(fs.read(self.ino, 0, &mut out).unwrap(), self.model.len());
        out.pop();
        if out != self.model {
            let at = out.iter().zip(&self.model).position(|(a, b)| a != b);
            let at = at.expect("they are as long as each other");
            panic!(
                "byte {at} of {} differs: {} for {}",
                out.len(),
                out[at],
                self.model[at]
            );
        }
        assert_eq!(fs.getattr(self.ino).unwrap().size, self.model.len() as u64);
        self.check_seek(fs);
    }

    /// Checks that holes by seek read as zeros, and that the pieces cover the file.
    fn check_seek(&self, fs: &Fs) {
        let size = self.model.len() as u64;
        let mut at = 0;
        while at < size {
            let hole = fs.seek(self.ino, at, Whence::Hole).unwrap();
            assert!(hole >= at && hole <= size);
            let data = match fs.seek(self.ino, hole.min(size - 1), Whence::Data) {
                Ok(data) => data,
                Err(Error::NoSuchDevice) => size,
                Err(e) => panic!("{e}"),
            };
            let zeros = &self.model[hole as usize..data.max(hole) as usize];
            assert!(zeros.iter().fold(0, |all, byte| all | byte) == 0);
            assert!(data > at || hole > at, "no way on from {at}");
            at = data.max(hole);
            if hole == size {
                break;
            }
        }
    }
}

fn step(fs: &Fs, c: &Caller, rng: &mut Rng, twins: &mut [Twin], extents: bool) {
    let which = rng.below(twins.len() as u64) as usize;
    let twin = &mut twins[which];
    let at = rng.offset();
    let longest = [100, 10_000, 300_000][rng.below(3) as usize];
    let len = 1 + rng.below(longest);
    let keep = rng.below(2) == 0;
    let range = at as usize..(at + len) as usize;
    let what = rng.below(12);
    if std::env::var_os("TRACE").is_some() {
        eprintln!("op {what} file {which} at {at} len {len} keep {keep}");
    }
    match what {
        0..=3 => {
            let byte = rng.next() as u8;
            let bytes: Vec<u8> = (0..len).map(|i| byte.wrapping_add((i / 7) as u8)).collect();
            assert_eq!(fs.write(c, twin.ino, at, &bytes).unwrap(), bytes.len());
            twin.overwrite(range.start, &bytes);
        }
        4 => {
            let bytes = vec![rng.next() as u8; 1 + rng.below(5000) as usize];
            let (offset, n) = fs.append(c, twin.ino, &bytes).unwrap();
            assert_eq!((offset, n), (twin.model.len() as u64, bytes.len()));
            twin.overwrite(twin.model.len(), &bytes);
        }
        5 => {
            fs.setattr(
                c,
                twin.ino,
                &SetAttr {
                    size: Some(at),
                    ..SetAttr::default()
                },
            )
            .unwrap();
            twin.model.resize(at as usize, 0);
        }
        6 => {
            let mode = FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE;
            fs.fallocate(c, twin.ino, mode, at, len).unwrap();
            let end = range.end.min(twin.model.len());
            if range.start < end {
                twin.model[range.start..end].fill(0);
            }
        }
        7 if extents => {
            let mut mode = FallocateMode::ZERO_RANGE;
            mode.set(FallocateMode::KEEP_SIZE, keep);
            fs.fallocate(c, twin.ino, mode, at, len).unwrap();
            if !keep && twin.model.len() < range.end {
                twin.model.resize(range.end, 0);
            }
            let end = range.end.min(twin.model.len());
            if range.start < end {
                twin.model[range.start..end].fill(0);
            }
        }
        8 if extents => {
            let mode = if keep {
                FallocateMode::KEEP_SIZE
            } else {
                FallocateMode::empty()
            };
            fs.fallocate(c, twin.ino, mode, at, len).unwrap();
            if !keep && twin.model.len() < range.end {
                twin.model.resize(range.end, 0);
            }
        }
        9 => {
            let other = (which + 1) % twins.len();
            let to = rng.offset();
            let n = fs
                .copy_range(c, (twins[which].ino, at), (twins[other].ino, to), len)
                .unwrap();
            let model = &twins[which].model;
            let end = range.end.min(model.len());
            let bytes = model.get(range.start..end).unwrap_or_default().to_vec();
            assert_eq!(n, bytes.len() as u64);
            if n > 0 {
                twins[other].overwrite(to as usize, &bytes);
            }
        }
        10 => fs.sync().unwrap(),
        _ => fs.fsync(twin.ino, true).unwrap(),
    }
}

fn run(kind: &str, args: &[&str], options: &str, seed: u64) {
    eprintln!("contents: {kind}, {options}, seed {seed}");
    let mut rng = Rng(seed);
    let c = Caller::root();
    let image = Image::new(48, args);
    let extents = args.contains(&"ext4") || args.iter().any(|a| a.contains("metadata_csum"));
    let mut fs = image.mount(options);
    let root = fs.root();
    let mut twins: Vec<Twin> = (0..3u8)
        .map(|i| Twin {
            ino: fs.create(&c, root, &[b'a' + i], 0o644, RW).unwrap().ino,
            model: Vec::new(),
        })
        .collect();
    for n in 0..STEPS {
        step(&fs, &c, &mut rng, &mut twins, extents);
        if n % 10 == 0 {
            twins.iter().for_each(|t| t.check(&fs));
        }
        if n % 50 == 49 {
            // A crash after a sync loses nothing.
            fs.sync().unwrap();
            let crashed = image.crash_copy();
            let after = crashed.mount(options);
            twins.iter().for_each(|t| t.check(&after));
            after.unmount().unwrap();
            crashed.assert_clean();
            twins.iter().for_each(|t| fs.release(t.ino).unwrap());
            fs.unmount().unwrap();
            image.assert_clean();
            fs = image.mount(options);
            twins.iter().for_each(|t| {
                t.check(&fs);
                fs.open(&c, t.ino, RW).unwrap();
            });
        }
    }
    twins.iter().for_each(|t| fs.release(t.ino).unwrap());
    for name in [b"a", b"b", b"c"] {
        fs.unlink(&c, root, name).unwrap();
    }
    let free = fs.statfs().unwrap();
    fs.unmount().unwrap();
    image.assert_clean();
    let fresh = Image::new(48, args).mount(options).statfs().unwrap();
    assert_eq!(free.files_free, fresh.files_free);
    assert!(
        free.blocks_free + 1 >= fresh.blocks_free,
        "{free:?} {fresh:?}"
    );
}

#[test]
fn contents_agree_with_a_vector() {
    let modes = modes();
    for (i, (kind, args)) in KINDS.iter().enumerate() {
        for (j, options) in modes.iter().enumerate() {
            run(kind, args, options, 1 + (i * modes.len() + j) as u64);
        }
    }
}

/// A longer run, by hand: `cargo test --release -- --ignored contents_for_long`, with `SEED` to
/// replay.
#[test]
#[ignore = "runs for minutes"]
fn contents_for_long() {
    let seeds = match std::env::var("SEED") {
        Ok(seed) => vec![seed.parse().unwrap()],
        Err(_) => (1000..1100).collect::<Vec<u64>>(),
    };
    let modes = modes();
    for seed in seeds {
        let (kind, args) = KINDS[seed as usize % KINDS.len()];
        run(
            kind,
            args,
            &modes[(seed as usize / KINDS.len()) % modes.len()],
            seed,
        );
    }
}
