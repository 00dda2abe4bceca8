//! A volume that is left without an unmount while a thread in the background writes to it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::Duration;

use stetfs::{Caller, MountOptions, OpenFlags};
use stetfs_media::{BlockDev, Cause, Layer, MediaError, RamDev, Tag};

use crate::volume::{image, mount};

/// A device that writes a checkpoint slowly, and notes when one begins.
struct Slow(RamDev, AtomicBool);

impl Layer for Slow {
    fn below(&self) -> &dyn BlockDev {
        &self.0
    }

    fn write_vectored_at(&self, offset: u64, parts: &[&[u8]], tag: Tag) -> Result<(), MediaError> {
        if tag.cause == Cause::Checkpoint {
            self.1.store(true, Ordering::Relaxed);
            sleep(Duration::from_millis(50));
        }
        self.0.write_vectored_at(offset, parts, tag)
    }
}

#[test]
fn nothing_is_written_behind_who_has_left() {
    let made = image("-t ext4 -b 1024 -J size=1", 16).to_bytes();
    let dev = Arc::new(Slow(RamDev::from_image(&made), AtomicBool::new(false)));
    let fs = mount(dev.clone(), MountOptions::parse("data=journal").unwrap());
    let c = Caller::root();
    let how = OpenFlags::READ.union(OpenFlags::WRITE);
    for n in 0.. {
        let name = format!("file{n}");
        let file = fs.create(&c, fs.root(), name.as_bytes(), 0o644, how);
        let ino = file.unwrap().ino;
        fs.write(&c, ino, 0, &[1; 50_000]).unwrap();
        fs.fsync(ino, false).unwrap();
        if dev.1.load(Ordering::Relaxed) {
            break;
        }
    }
    drop(fs);
    assert_eq!(Arc::strong_count(&dev), 1, "somebody still has the device");
}
