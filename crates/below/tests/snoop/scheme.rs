//! Journals that our own jbd2 writes.

use std::sync::Arc;

use stetfs::{Caller, Fs, MountOptions};
use stetfs_media::{BlockDev, Layer, MediaError, Tag};

use super::support::{self, RW, has, volume};
use super::{Bed, Beside, KINDS};

/// Owns [`Beside`], as a mount wants.
struct Shared(Arc<Bed>);

impl Layer for Shared {
    fn below(&self) -> &dyn BlockDev {
        &*self.0.snoop
    }

    fn read_at(&self, offset: u64, out: &mut [u8], tag: Tag) -> Result<(), MediaError> {
        Layer::read_at(&Beside(&self.0), offset, out, tag)
    }

    fn write_vectored_at(&self, offset: u64, parts: &[&[u8]], tag: Tag) -> Result<(), MediaError> {
        Layer::write_vectored_at(&Beside(&self.0), offset, parts, tag)
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), MediaError> {
        Layer::discard(&Beside(&self.0), offset, len)
    }

    fn write_zeros(&self, offset: u64, len: u64, tag: Tag) -> Result<(), MediaError> {
        Layer::write_zeros(&Beside(&self.0), offset, len, tag)
    }
}

fn mount(bed: &Arc<Bed>, options: &str) -> Fs {
    let options = MountOptions::parse(options).unwrap();
    Fs::mount(Arc::new(Shared(bed.clone())), options).unwrap().0
}

/// Work for several laps of the log. One block in three begins like a record of the journal, and is
/// escaped.
fn work(fs: &Fs) {
    support::work(fs, 0..120, |n| {
        let mut content = support::content(n);
        for block in content.chunks_mut(4096).step_by(3) {
            block[..4].copy_from_slice(&0xc03b_3998_u32.to_be_bytes());
        }
        content
    });
}

#[test]
fn everything_logged_comes_home_by_remaps() {
    if !has(&["mke2fs"]) {
        return;
    }
    for kind in KINDS {
        let bed = Arc::new(Bed::new(&volume(8, kind), 1 << 12));
        let fs = mount(&bed, "data=journal");
        work(&fs);
        fs.unmount().unwrap();
        bed.compare(&format!("{kind:?}"));
        let (seen, layer) = bed.stats();
        assert!(seen.follows && seen.commits > 50, "{kind:?} {seen:?}");
        assert!(seen.escaped > 50, "{kind:?} {seen:?}");
        // Remapped: all blocks that were not overwritten, deleted or escaped before they came home.
        assert!(seen.remapped > 50 && seen.lists > 0, "{kind:?} {seen:?}");
        assert!(layer.remapped_pages >= seen.remapped, "{kind:?} {layer:?}");
    }
}

/// The volume is left as after a crash, and a new layer snoops on it: what recovery writes home is
/// remapped, too.
#[test]
fn recovery_is_remapped() {
    if !has(&["mke2fs"]) {
        return;
    }
    for kind in KINDS {
        let first = Bed::new(&volume(8, kind), 1 << 12);
        let first = Arc::new(first);
        let fs = mount(&first, "data=journal,commit=1000");
        let c = Caller::root();
        let file = fs.create(&c, fs.root(), b"file", 0o644, RW).unwrap().ino;
        fs.write(&c, file, 0, &[0x5a; 50_000]).unwrap();
        fs.fsync(file, false).unwrap();
        let bed = Arc::new(Bed::new(&first.plain.fork(), 1 << 12));
        drop(fs);
        let before = bed.stats().0;
        assert!(
            before.commits > 0 && before.logged > 10,
            "{kind:?} {before:?}"
        );
        let fs = mount(&bed, "");
        let found = fs.lookup(&c, fs.root(), b"file").unwrap().ino;
        let mut out = vec![0; 50_001];
        assert_eq!(fs.read(found, 0, &mut out).unwrap(), 50_000);
        assert!(out[..50_000].iter().all(|byte| *byte == 0x5a));
        fs.unmount().unwrap();
        bed.compare(&format!("{kind:?}"));
        assert!(bed.stats().0.remapped >= 12, "{kind:?} {:?}", bed.stats());
    }
}
