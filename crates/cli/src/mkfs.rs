//! `stetfs mkfs`: makes a volume.
//!
//! This module chooses what the arguments leave open, sets the size of an image file, and refuses
//! to destroy existing content. `stetfs_mkfs` makes the volume (`ours.rs`), or mke2fs if it is
//! given arguments of its own (`mke2fs.rs`). `--from` fills it (`from.rs`).

mod from;
mod mke2fs;
mod ours;
mod sizes;

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use stetfs_media::nand::NandFile;

use crate::args::Mkfs;
use crate::failure::{Explain, Failure, Result};
use crate::flash::loan::Loan;
use crate::holds::{self, Holds};
use crate::info::VolumeInfo;
use crate::mounts;
use crate::part;
use crate::size::Size;
use crate::{disk, output};
use sizes::{VOLUME_BLOCKS_MIN, wanted_journal};

pub(crate) fn run(args: &Mkfs) -> Result<()> {
    let image = &args.image;
    let shown = image.display();
    check_arguments(args)?;

    let is_part = part::is_part(image);
    if is_part {
        part::find(image)?;
    }
    let existed = is_part || image.exists();
    if existed {
        check_overwrite(args)?;
    } else {
        holds::check_new(image)?;
    }
    let loan = match (is_part, args.extra.is_empty()) {
        (false, _) => Loan::blank(image)?,
        (true, true) => None,
        (true, false) => Some(Loan::blank_part(image)?),
    };
    let made = if args.extra.is_empty() {
        make(args, existed, loan)
    } else {
        run_mke2fs(args, existed, loan)
    };
    match made.and_then(|()| VolumeInfo::read(image)) {
        Ok(volume) if args.json => output::json(&volume),
        Ok(volume) => output::line(format_args!("made {shown}: {}", volume.summary())),
        Err(e) => {
            if !existed {
                // The unfinished file is no volume. An error of the removal changes nothing about
                // the failure that is reported.
                let _ = fs::remove_file(image);
            }
            Err(e)
        }
    }
}

/// Makes the volume, and fills it. A wrong argument destroys nothing.
fn make(args: &Mkfs, existed: bool, loan: Option<Loan>) -> Result<()> {
    let image = &args.image;
    let shown = || image.display().to_string();
    let is_file = loan.is_none() && (!existed || is_whole_file(image).during(shown)?);
    let is_measured = args.from.is_some() && args.size.is_none() && is_file;
    let size = if is_measured {
        VOLUME_BLOCKS_MIN * args.block_size.0
    } else {
        wanted_size(args, existed, loan.as_ref()).during(shown)?
    };
    let mut params = ours::params(args, size)?;
    let content = match &args.from {
        Some(from) => Some(ours::content(args, from, !is_measured, &mut params)?),
        None => None,
    };
    let plan = ours::plan(args, &params)?;
    if let Some(loan) = loan {
        ours::write(&params, plan, loan.path())?;
        loan.give_back().during(shown)?;
    } else {
        if is_file {
            let size = if is_measured {
                plan.geometry().volume_bytes()
            } else {
                size
            };
            ours::set_size(image, size).during(shown)?;
        }
        ours::write(&params, plan, image)?;
    }
    content.map_or(Ok(()), |content| {
        content.fill(image, params.time, args.quiet)
    })
}

/// Makes the volume by mke2fs.
fn run_mke2fs(args: &Mkfs, existed: bool, loan: Option<Loan>) -> Result<()> {
    let image = &args.image;
    let shown = || image.display().to_string();
    let size = wanted_size(args, existed, loan.as_ref()).during(shown)?;
    let journal = wanted_journal(args, size);
    let Some(loan) = loan else {
        if existed {
            // Try first: a wrong argument must not destroy existing content.
            mke2fs::check(args, size, journal)?;
        }
        set_size(args, existed, size).during(shown)?;
        return mke2fs::make(args, image, size, journal);
    };
    mke2fs::make(args, loan.path(), size, journal)?;
    loan.give_back().during(shown)
}

fn check_arguments(args: &Mkfs) -> Result<()> {
    if args.from.is_none() && !(args.which.is_any() && args.owners.is_none()) {
        return Err(Failure::new(
            "--tag, --platform, --chown and --owner-map say something of --from, which is missing",
        )
        .exit(2));
    }
    if ![1024, 2048, 4096].contains(&args.block_size.0) {
        return Err(Failure::new(format!(
            "a block size of {} bytes is not supported",
            args.block_size.0
        ))
        .advise("choose 1K, 2K or 4K")
        .exit(2));
    }
    if let Some(name) = &args.scheme {
        stetfs_schemes::find(name)
            .or_advise(|| "see the list: stetfs schemes".to_owned())
            .map_err(|f| f.exit(2))?;
    }
    if let Some(label) = args.label.as_ref().filter(|l| l.len() > 16) {
        return Err(Failure::new(format!("the label \"{label}\" is longer than 16 bytes")).exit(2));
    }
    Ok(())
}

/// Fails if the image must not be overwritten.
fn check_overwrite(args: &Mkfs) -> Result<()> {
    let image = &args.image;
    let file = part::file_of(image);
    let kind = file
        .metadata()
        .during(|| file.display().to_string())?
        .file_type();
    if !kind.is_file() && !kind.is_block_device() {
        return Err(Failure::new(format!(
            "{} is neither a file nor a block device",
            image.display()
        )));
    }
    mounts::check_unused(image)?;
    if args.force {
        return Ok(());
    }
    match contents(image)? {
        None => Ok(()),
        Some(what) => Err(Failure::new(format!("{} holds {what}", image.display()))
            .advise("overwrite it with --force; everything in it will be lost")),
    }
}

/// True for a file, whose length is the volume's; false for a device, and for a part of a file.
fn is_whole_file(image: &Path) -> Result<bool> {
    Ok(!part::is_part(image) && image.metadata()?.is_file())
}

/// Returns what the image holds; `None` if it is empty. For a NAND part, looks at its device.
fn contents(image: &Path) -> Result<Option<Holds>> {
    if NandFile::is_at(image) || part::is_part(image) {
        holds::what_on(&*disk::look_at(image)?)
    } else {
        holds::what(image)
    }
}

/// Returns the volume's size in bytes; on a NAND part, the part's size.
fn wanted_size(args: &Mkfs, existed: bool, part: Option<&Loan>) -> Result<u64> {
    let image = &args.image;
    let no_size = || {
        Failure::new("its size is not known")
            .advise("say how large it is to be, such as --size 1G")
            .exit(2)
    };
    let block = args.block_size.0;
    let size = match (args.size, existed) {
        (Some(size), _) => size.0,
        (None, true) => capacity(image, part)?,
        (None, false) => return Err(no_size()),
    };
    if size == 0 {
        return Err(no_size());
    }
    if size / block < VOLUME_BLOCKS_MIN {
        let least = VOLUME_BLOCKS_MIN * block;
        return Err(Failure::new(format!(
            "{} is too small for a volume with a journal",
            Size(size)
        ))
        .advise(format!(
            "the least is {} with {} blocks",
            Size(least),
            Size(block)
        )));
    }
    let is_file = part.is_none() && (!existed || is_whole_file(image)?);
    if !is_file {
        let device = capacity(image, part)?;
        if size > device {
            let what = if part::is_part(image) {
                "part"
            } else {
                "device"
            };
            return Err(Failure::new(format!(
                "{} is more than the {what} has ({})",
                Size(size),
                Size(device)
            )));
        }
    }
    Ok(size)
}

/// Sets the size of an image file, which is sparse.
fn set_size(args: &Mkfs, existed: bool, size: u64) -> Result<()> {
    let image = &args.image;
    if args.size.is_some() && (!existed || image.metadata()?.is_file()) {
        // Truncate first, so that nothing of an older volume can be found in the new one.
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .open(image)?;
        file.set_len(size)?;
    }
    Ok(())
}

/// The size of a file, a part of a file, a block device or a NAND part, in bytes.
fn capacity(image: &Path, part: Option<&Loan>) -> Result<u64> {
    use std::io::{Seek, SeekFrom};
    if let Some(part) = part {
        return Ok(part.size());
    }
    if let part::Image::Part(extent) = part::find(image)? {
        return Ok(extent.range.size);
    }
    Ok(File::open(image)?.seek(SeekFrom::End(0))?)
}
