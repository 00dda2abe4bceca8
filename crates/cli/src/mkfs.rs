//! `stetfs mkfs`: makes a volume with mke2fs.
//!
//! mke2fs alone formats. This module chooses its arguments, sets the size of an image file, and
//! refuses to destroy existing content.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::process::{Command, Stdio};

use stetfs_media::nand::NandFile;

use crate::args::Mkfs;
use crate::failure::{Explain, Failure, Result};
use crate::flash::loan::Loan;
use crate::holds::{self, Holds};
use crate::info::VolumeInfo;
use crate::mounts;
use crate::size::Size;
use crate::{disk, e2fsprogs, output};

const MIB: u64 = 1 << 20;

/// Blocks of the smallest journal. mke2fs makes none on a volume of fewer than 2,048 blocks.
const JOURNAL_BLOCKS_MIN: u64 = 1024;
const VOLUME_BLOCKS_MIN: u64 = 2 * JOURNAL_BLOCKS_MIN;

/// Bytes of the largest journal that is made without --journal-size.
const JOURNAL_MAX: u64 = 256 * MIB;

pub(crate) fn run(args: &Mkfs) -> Result<()> {
    let image = &args.image;
    let shown = image.display();
    check_arguments(args)?;
    let mut tool = e2fsprogs::command("mke2fs")?;

    let existed = image.exists();
    if existed {
        check_overwrite(args)?;
    } else {
        holds::check_new(image)?;
    }
    let loan = Loan::blank(image)?;
    let size = wanted_size(args, existed, loan.as_ref()).during(|| shown.to_string())?;
    if existed && loan.is_none() {
        // Try first: a wrong argument must not destroy existing content.
        let mut trial = e2fsprogs::command("mke2fs")?;
        trial.arg("-n");
        mke2fs_arguments(&mut trial, args, image, size);
        run_tool(&mut trial, args, false)?;
    }
    if loan.is_none() {
        set_size(args, existed, size).during(|| shown.to_string())?;
    }
    let target = loan.as_ref().map_or(image.as_path(), Loan::path);
    mke2fs_arguments(&mut tool, args, target, size);
    let made = run_tool(&mut tool, args, true)
        .and_then(|()| {
            args.scheme
                .as_deref()
                .map_or(Ok(()), |name| carry(name, target))
        })
        .and_then(|()| loan.map_or(Ok(()), |loan| loan.give_back().during(|| shown.to_string())))
        .and_then(|()| VolumeInfo::read(image));
    match made {
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

fn check_arguments(args: &Mkfs) -> Result<()> {
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
    let kind = image
        .metadata()
        .during(|| image.display().to_string())?
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

/// Returns what the image holds; `None` if it is empty. For a NAND part, looks at its device.
fn contents(image: &Path) -> Result<Option<Holds>> {
    if NandFile::is_at(image) {
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
    let is_file = part.is_none() && (!existed || image.metadata()?.is_file());
    if !is_file {
        let device = capacity(image, part)?;
        if size > device {
            return Err(Failure::new(format!(
                "{} is more than the device has ({})",
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

/// The size of a file, block device or NAND part, in bytes.
fn capacity(image: &Path, part: Option<&Loan>) -> Result<u64> {
    use std::io::{Seek, SeekFrom};
    if let Some(part) = part {
        return Ok(part.size());
    }
    Ok(File::open(image)?.seek(SeekFrom::End(0))?)
}

/// Returns the size of the journal, a sixteenth of the volume: every byte goes through the journal,
/// and a few commits must not already force a checkpoint.
fn journal_size(volume: u64, block: u64) -> u64 {
    (volume / 16).clamp(JOURNAL_BLOCKS_MIN * block, JOURNAL_MAX)
}

fn mke2fs_arguments(tool: &mut Command, args: &Mkfs, target: &Path, size: u64) {
    let block = args.block_size.0;
    let journal = args
        .journal_size
        .map_or_else(|| journal_size(size, block), |s| s.0);
    // -F: mke2fs must not ask about a file; `check_overwrite` has looked.
    tool.args(["-q", "-F", "-t", &args.kind, "-I", "256"]);
    tool.args(["-b", &block.to_string()]);
    if !args
        .extra
        .iter()
        .any(|arg| arg.starts_with("-J") || arg.contains("^has_journal"))
    {
        tool.args(["-J", &format!("size={}", journal.div_ceil(MIB))]);
    }
    let user = rustix::process::geteuid();
    if !user.is_root() {
        // The user who makes a volume can write to its root directory.
        let group = rustix::process::getegid();
        tool.args([
            "-E",
            &format!("root_owner={}:{}", user.as_raw(), group.as_raw()),
        ]);
    }
    if let Some(label) = &args.label {
        tool.args(["-L", label]);
    }
    tool.args(&args.extra)
        .arg("--")
        .arg(target)
        .arg((size / block).to_string());
}

/// Notes the scheme in the volume's default mount options.
fn carry(scheme: &str, target: &Path) -> Result<()> {
    let mut tool = e2fsprogs::command("tune2fs")?;
    tool.arg("-E").arg(format!("mount_opts=scheme={scheme}"));
    let output = tool
        .arg(target)
        .stdin(Stdio::null())
        .output()
        .during(|| "tune2fs".to_owned())?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(Failure::new(format!(
        "{}: tune2fs could not set its scheme: {}",
        target.display(),
        said.trim()
    )))
}

/// Runs mke2fs. Passes its warnings on if `warns`, and makes its error ours.
fn run_tool(tool: &mut Command, args: &Mkfs, warns: bool) -> Result<()> {
    tracing::debug!(command = ?tool, "running");
    let output = tool
        .stdin(Stdio::null())
        .output()
        .during(|| "mke2fs".to_owned())?;
    let said = String::from_utf8_lossy(&output.stderr);
    let said: Vec<&str> = said
        .lines()
        .map(str::trim)
        .filter(|l| !l.is_empty() && !l.starts_with("mke2fs 1."))
        .collect();
    if output.status.success() {
        said.iter()
            .filter(|_| warns)
            .for_each(|line| eprintln!("mke2fs: {line}"));
        return Ok(());
    }
    // After a wrong option mke2fs prints its whole usage.
    let words = said
        .iter()
        .take_while(|l| !l.starts_with("Usage:"))
        .copied()
        .collect::<Vec<_>>()
        .join("; ");
    let words = words
        .split_once("mke2fs: ")
        .map_or(words.as_str(), |(_, words)| words);
    let failure = Failure::new(format!(
        "{}: mke2fs could not make the volume: {words}",
        args.image.display()
    ));
    Err(if args.extra.is_empty() {
        failure
    } else {
        failure.advise("look at the arguments after `--`; see mke2fs(8)")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_journal_is_a_sixteenth_within_bounds() {
        assert_eq!(journal_size(16 * MIB, 4096), 4 * MIB);
        assert_eq!(journal_size(16 * MIB, 1024), MIB);
        assert_eq!(journal_size(1 << 30, 4096), 64 * MIB);
        assert_eq!(journal_size(1 << 40, 4096), 256 * MIB);
    }
}
