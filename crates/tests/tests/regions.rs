//! Damaged memory beside a volume: a mount is refused by name, or it succeeds and unmounts. It
//! never panics or hangs.
#![forbid(unsafe_code)]

use std::sync::Arc;

use stetfs::{Caller, Fs, Media, MountOptions, OpenFlags};
use stetfs_media::sim::SimPmemOptions;
use stetfs_media::{Image, Pmem, SimDev, SimPmem};
use stetfs_schemes::SCHEMES;
use stetfs_testkit::ground::orders;
use stetfs_testkit::host::{needs, scratch};
use stetfs_testkit::image::EXT4_1K;
use stetfs_testkit::rng::Rng;
use stetfs_testkit::skip_unless;

const BYTES: u64 = 512 << 10;
const TRIES: u64 = 150;

fn media(home: &Image, nvm: &Image) -> (Arc<SimDev>, Arc<SimPmem>, Media) {
    let dev = Arc::new(SimDev::new(home.clone()));
    let options = SimPmemOptions {
        record: false,
        ..SimPmemOptions::default()
    };
    let pmem = Arc::new(options.build(nvm.clone()));
    let media = Media {
        home: dev.clone(),
        nvm: Some(pmem.clone() as Arc<dyn Pmem>),
    };
    (dev, pmem, media)
}

fn options(scheme: &str) -> MountOptions {
    MountOptions::parse(&format!("{scheme},memory=8M,commit=100")).expect("options")
}

/// Returns the mount options of each trial with memory beside the volume and an order of its own.
fn beside() -> impl Iterator<Item = String> {
    SCHEMES.iter().flat_map(|scheme| {
        let beside = orders(scheme).filter(|trial| trial.ground.has_nvm());
        beside.map(|trial| trial.mount_options(scheme.about))
    })
}

/// Returns what a machine leaves that stops in the middle of its work.
fn left(scheme: &str) -> (Image, Image) {
    let dir = scratch().expect("a directory");
    let path = dir.path().join("image");
    EXT4_1K.make(&path, 12, 1).expect("a volume");
    let fresh = Image::from_file(&path).expect("its content");
    let (dev, pmem, media) = media(&fresh, &Image::new(BYTES));
    let (fs, _) = Fs::mount(media, options(scheme)).expect("a mount");
    let (c, rw) = (Caller::root(), OpenFlags::READ | OpenFlags::WRITE);
    for n in 0..60u32 {
        let name = format!("file{}", n % 20);
        let made = fs.create(&c, fs.root(), name.as_bytes(), 0o644, rw);
        let ino = made.expect("a file").ino;
        fs.write(&c, ino, 0, &[n as u8; 3000]).expect("a write");
        fs.fsync(ino, false).expect("a sync");
    }
    (dev.stable(), pmem.stable())
}

#[test]
fn damage_is_told_and_never_a_panic() {
    skip_unless!(needs(false, false, &["mke2fs"]));
    for scheme in beside() {
        let scheme = scheme.as_str();
        let (home, nvm) = left(scheme);
        let (mut refused, mut used) = (0, 0);
        for seed in 0..TRIES {
            let mut rng = Rng::new(seed);
            let mut nvm = nvm.clone();
            // Headers, ring, logs and entries are at the beginning; damage one word, or a few.
            for _ in 0..1 + rng.below(3) {
                let at = if rng.chance(50) {
                    rng.below(512) / 8 * 8
                } else {
                    rng.below(48 << 10) / 8 * 8
                };
                let mut word = [0; 8];
                nvm.read(at, &mut word);
                match rng.below(3) {
                    0 => word[rng.below(8) as usize] ^= 1 << rng.below(8),
                    1 => rng.fill(&mut word),
                    _ => word = [0xff; 8],
                }
                nvm.write(at, &word);
            }
            let (_, _, media) = media(&home, &nvm);
            match Fs::mount(media, options(scheme)) {
                Ok((fs, _)) => {
                    // The content may be damaged too, so an error is allowed.
                    let _ = fs.unmount();
                    used += 1;
                }
                Err(error) => {
                    assert!(!error.to_string().is_empty(), "{scheme}, seed {seed}");
                    refused += 1;
                }
            }
        }
        assert!(refused > 0 && used > 0, "{scheme}: {refused}, {used}");
    }
}
