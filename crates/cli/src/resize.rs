//! `stetfs grow` and `stetfs shrink`: resize2fs, with what belongs around it.
//!
//! 1. The journal is recovered, by the scheme that wrote it: resize2fs knows only the kernel's.
//! 2. e2fsck looks at the volume, as resize2fs asks, and repairs what is safe.
//! 3. An image file is made longer before, or shorter after.
//! 4. e2fsck looks again.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal};
use std::path::Path;
use std::process::{Output, Stdio};

use stetfs_media::nand::NandFile;

use crate::args::{Grow, NewSize, ResizeHow, Shrink};
use crate::disk::Disk;
use crate::failure::{Explain, Failure, Result, TRUNCATED};
use crate::flash::loan::Loan;
use crate::info::VolumeInfo;
use crate::size::Size;
use crate::{e2fsprogs, holds, image, mounts, output, part};

/// Bytes of the units in which resize2fs is told sizes.
const SECTOR: u64 = 512;
/// How often a volume is made smaller at most.
const ROUNDS: u32 = 8;
/// e2fsck corrected everything that it found.
const CORRECTED: i32 = 1;

pub(crate) fn grow(args: &Grow) -> Result<()> {
    let volume = Volume::open(&args.image)?;
    let room = volume.room()?;
    let wanted = match args.size {
        Some(NewSize::Is(size)) => size,
        Some(NewSize::More(more)) => volume.size.saturating_add(more),
        None if volume.is_file && room <= volume.size => {
            return Err(volume
                .fails("is as large as its file")
                .advise("say how large it is to be: --size SIZE or --size +SIZE")
                .exit(2));
        }
        None => room,
    };
    let wanted = wanted / volume.block * volume.block;
    if wanted < volume.size {
        return Err(volume
            .is_already()
            .advise("to make it smaller: stetfs shrink"));
    }
    if wanted > room && !volume.is_file {
        let (wanted, room) = (Size(wanted), Size(room));
        let what = format!("{wanted} is more than there is room for ({room})");
        return Err(volume.fails(what));
    }
    volume.make_ready(&args.how)?;
    if wanted > room {
        volume.set_length(wanted)?;
    }
    if wanted > volume.size {
        let resized = volume.lend(|file| volume.resize(file, wanted, &args.how));
        // Nothing was done with the new length: whoever tries again finds what was there before.
        if resized.is_err() && wanted > room && size_of(&args.image).is_ok_and(|size| size <= room)
        {
            volume.set_length(room)?;
        }
        resized?;
    }
    volume.end(&args.how)
}

pub(crate) fn shrink(args: &Shrink) -> Result<()> {
    let volume = Volume::open(&args.image)?;
    if args.size.is_some_and(|Size(size)| size > volume.size) {
        return Err(volume.is_already().advise("to make it larger: stetfs grow"));
    }
    volume.make_ready(&args.how)?;
    volume.lend(|file| {
        match args.size {
            Some(Size(size)) => volume.shrink_to(file, size, &args.how)?,
            None => volume.shrink_most(file, &args.how)?,
        }
        let Some(Size(free)) = args.free else {
            return Ok(());
        };
        let wanted = size_of(file)?.saturating_add(free).min(volume.size);
        volume.resize(file, wanted / volume.block * volume.block, &args.how)
    })?;
    if volume.is_file {
        volume.set_length(size_of(&args.image)?)?;
    }
    volume.end(&args.how)
}

/// A volume that is resized.
struct Volume<'a> {
    image: &'a Path,
    /// Bytes of the volume before.
    size: u64,
    /// Bytes of a block.
    block: u64,
    /// It is all of a file, whose length follows.
    is_file: bool,
}

impl<'a> Volume<'a> {
    /// Looks at a volume, and changes nothing.
    fn open(image: &'a Path) -> Result<Self> {
        let shown = || image.display().to_string();
        // Both tools are there before anything is changed.
        e2fsprogs::command("resize2fs")?;
        e2fsprogs::command("e2fsck")?;
        mounts::check_unused(image)?;
        if NandFile::is_at(image) {
            let failure = Failure::new("a NAND part has the size that it was made with");
            return Err(failure.context(shown()));
        }
        let disk = Disk::open(image)?;
        if disk.missing() > 0 {
            let what = format!("{} are missing at its end", Size(disk.missing()));
            return Err(Failure::new(what).advise(TRUNCATED).context(shown()));
        }
        Ok(Self {
            image,
            size: disk.superblock.volume_bytes(),
            block: disk.superblock.block.bytes_u32().into(),
            is_file: !part::is_part(image) && image.metadata().during(shown)?.is_file(),
        })
    }

    /// Recovers its journal, and has it checked.
    fn make_ready(&self, how: &ResizeHow) -> Result<()> {
        let before = VolumeInfo::read(self.image)?;
        if before.needs_recovery || before.first_orphan != 0 {
            let report = image::recover(self.image, how.nvm.as_deref())?;
            if !how.json {
                let words = image::recovery_in_words(&report);
                output::line(format_args!("{}: {words}", self.image.display()))?;
            }
        }
        self.check("-p")
    }

    fn is_already(&self) -> Failure {
        self.fails(format!("is {} already", Size(self.size)))
    }

    fn fails(&self, what: impl Into<String>) -> Failure {
        Failure::new(what).context(self.image.display())
    }

    /// Bytes that the file, the device or the partition has.
    fn room(&self) -> Result<u64> {
        match part::find(self.image)? {
            part::Image::Part(extent) => {
                let length = part::length(&extent.file)?;
                let behind = length.saturating_sub(extent.range.offset);
                Ok(extent.range.size.min(behind))
            }
            part::Image::Whole(file) => holds::length(&file),
        }
    }

    /// Does the work on a file that has the volume alone. A part of a file is lent as a copy:
    /// resize2fs would cut the file off behind it.
    fn lend(&self, work: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
        if !part::is_part(self.image) {
            return work(self.image);
        }
        let loan = Loan::of_part(self.image)?;
        work(loan.path())?;
        loan.give_back().during(|| self.image.display().to_string())
    }

    fn shrink_to(&self, file: &Path, size: u64, how: &ResizeHow) -> Result<()> {
        let least = self.least(file)?;
        if size < least {
            return Err(self.fails(format!("cannot be smaller than {}", Size(least))));
        }
        self.resize(file, size / self.block * self.block, how)
    }

    /// Makes the volume smaller until resize2fs finds nothing more: it expects more of its first
    /// rounds than it needs.
    fn shrink_most(&self, file: &Path, how: &ResizeHow) -> Result<()> {
        for _ in 0..ROUNDS {
            let least = self.least(file)?;
            if least >= size_of(file)? {
                break;
            }
            self.resize(file, least, how)?;
        }
        Ok(())
    }

    fn set_length(&self, bytes: u64) -> Result<()> {
        let shown = || self.image.display().to_string();
        let file = OpenOptions::new().write(true).open(self.image);
        let file = file.during(shown)?;
        file.set_len(bytes).during(shown)?;
        file.sync_all().during(shown)
    }

    /// The least number of bytes that the volume can have, as resize2fs says.
    fn least(&self, file: &Path) -> Result<u64> {
        let mut tool = e2fsprogs::command("resize2fs")?;
        // The number is behind the last colon, in every language.
        let output = tool
            .arg("-P")
            .arg(file)
            .output()
            .during(|| "resize2fs".to_owned())?;
        let text = String::from_utf8_lossy(&output.stdout);
        let blocks = text.rsplit(':').next().and_then(|n| n.trim().parse().ok());
        let blocks: u64 = blocks.ok_or_else(|| self.said("resize2fs", &output))?;
        Ok(blocks.saturating_mul(self.block))
    }

    /// Makes the volume in the file of this size, in bytes.
    fn resize(&self, file: &Path, bytes: u64, how: &ResizeHow) -> Result<()> {
        let mut tool = e2fsprogs::command("resize2fs")?;
        let is_watched = io::stderr().is_terminal() && !how.quiet;
        if is_watched {
            tool.arg("-p");
        }
        tool.arg(file).arg(format!("{}s", bytes / SECTOR));
        if is_watched {
            tool.stdout(File::from(rustix::io::dup(io::stderr())?));
        }
        let output = tool
            .stdin(Stdio::null())
            .output()
            .during(|| "resize2fs".to_owned())?;
        if output.status.success() {
            return Ok(());
        }
        Err(self.said("resize2fs", &output))
    }

    /// Has e2fsck look at all of the volume: with `-p`, repair what is safe; with `-n`, nothing.
    fn check(&self, how: &str) -> Result<()> {
        let mut tool = e2fsprogs::command("e2fsck")?;
        let output = tool
            .args(["-f", how, "--"])
            .arg(part::for_e2fsprogs(self.image)?)
            .stdin(Stdio::null())
            .output()
            .during(|| "e2fsck".to_owned())?;
        match output.status.code() {
            Some(0..=CORRECTED) => Ok(()),
            _ => Err(self
                .said("e2fsck", &output)
                .advise("repair it first: stetfs fsck IMAGE")),
        }
    }

    /// What a tool said when it failed.
    fn said(&self, tool: &str, output: &Output) -> Failure {
        let words = [&output.stderr[..], &output.stdout].concat();
        let words = String::from_utf8_lossy(&words);
        let lines = words.lines().map(str::trim).filter(|line| !line.is_empty());
        // The first line is the program's version.
        let lines: Vec<&str> = lines.filter(|line| !line.starts_with(tool)).collect();
        self.fails(format!("{tool}: {}", lines.join("; ")))
    }

    fn end(&self, how: &ResizeHow) -> Result<()> {
        self.check("-n")?;
        let now = VolumeInfo::read(self.image)?;
        if how.json {
            return output::json(&now);
        }
        let shown = self.image.display();
        output::line(format_args!("{shown}: {}", now.summary()))
    }
}

/// Bytes of the volume as it is now.
fn size_of(file: &Path) -> Result<u64> {
    Ok(Disk::open(file)?.superblock.volume_bytes())
}

#[cfg(test)]
mod tests {
    use crate::args::NewSize;

    #[test]
    fn a_size_or_so_much_more() {
        assert_eq!("1K".parse(), Ok(NewSize::Is(1024)));
        assert_eq!("+2M".parse(), Ok(NewSize::More(2 << 20)));
        assert!("++1M".parse::<NewSize>().is_err() && "+".parse::<NewSize>().is_err());
    }
}
