//! A volume in this process: make it, write, fsync, lose the power, open it again.
//!
//! `cargo run -p stetfs --example durable -- disk.img` leaves an image that `stetfs ls disk.img:/`,
//! e2fsck and the kernel read. mke2fs makes the volume (package e2fsprogs).

use std::error::Error;
use std::path::Path;
use std::sync::Arc;

use stetfs::{Caller, Fs, MountOptions, OpenFlags, open_media};
use stetfs_media::sim::Keep;
use stetfs_media::{Image, SimDev};

mod making;

const TEXT: &[u8] = b"What fsync confirmed is there.\n";

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args_os()
        .nth(1)
        .ok_or("usage: durable IMAGE, which is made anew")?;
    println!("{}", run(Path::new(&path))?);
    Ok(())
}

/// Runs the whole example on an image at `path`. Returns what to print.
pub fn run(path: &Path) -> Result<String, Box<dyn Error>> {
    making::mke2fs(path, 32)?;
    write_until_the_power_goes(Image::from_file(path)?)?.to_file(path)?;

    // A program whose volume exists begins here. The options are those of `mount -o`.
    let options = MountOptions::parse("scheme=jbd2,data=ordered")?;
    let (fs, report) = Fs::mount(open_media(path, &options, false)?, options)?;
    let recovered = report.recovery.transactions;

    let me = Caller::root();
    let letter = fs.resolve(&me, b"/letters/first", true)?;
    let mut text = vec![0; TEXT.len() + 1];
    let len = fs.read(letter.ino, 0, &mut text)?;
    if &text[..len] != TEXT {
        return Err("what was synced is not there".into());
    }
    let second = match fs.resolve(&me, b"/letters/second", true) {
        Ok(_) => "there too",
        Err(stetfs::Error::NotFound) => "lost",
        Err(e) => return Err(e.into()),
    };

    // Without this unmount, the image is as after a crash, and the next mount recovers it.
    fs.unmount()?;
    Ok(format!(
        "{recovered} transactions recovered; the letter that was synced is there, the other \
            {second}"
    ))
}

/// Writes two letters and syncs one. Returns the disk without anything that was not made durable.
fn write_until_the_power_goes(image: Image) -> Result<Image, Box<dyn Error>> {
    let disk = Arc::new(SimDev::new(image));
    let (fs, _) = Fs::mount(disk.clone(), MountOptions::default())?;

    let me = Caller::root();
    let letters = fs.mkdir(&me, fs.root(), b"letters", 0o755)?;
    let first = fs.create(&me, letters.ino, b"first", 0o644, OpenFlags::WRITE)?;
    fs.write(&me, first.ino, 0, TEXT)?;
    fs.fsync(first.ino, false)?;
    fs.release(first.ino)?;

    let second = fs.create(&me, letters.ino, b"second", 0o644, OpenFlags::WRITE)?;
    fs.write(&me, second.ino, 0, b"Nobody waited for this.\n")?;
    fs.release(second.ino)?;

    Ok(disk.crash_point().state(&Keep::None))
}
